//! The geometry of one sample: a transform with the numbers that were drawn for it.

use std::array;

use loader_core::{Element, Phase, Tensor};
use rand::Rng;

use super::{
    super::{
        decode,
        error::ImageProblem,
        picture::{Area, Size},
    },
    Pixel, Transform,
    canvas::{self, Canvas},
    load::with_canvas,
    plan::Plan,
};

/// A [`Transform`] with the random numbers of one sample, for data whose parts must be cut alike: an image,
/// its mask and its boxes. Created by [`Transform::draw`] and [`Transform::decode_drawn`].
///
/// # Examples
/// ```
/// use loader_core::{SampleContext, Tensor};
/// use loader_data::Transform;
///
/// let file = std::fs::read("photos/table/coffee.jpg")?; // 600 x 400 pixels
/// let mask = Tensor::<u8>::zeros([400, 600])?; // or `decode_mask(&png)?`
/// let boxes = [[150.0, 80.0, 480.0, 350.0], [0.0, 0.0, 10.0, 10.0]];
///
/// let transform = Transform::new().center_crop(300, 300).random_horizontal_flip(0.5);
/// let (image, drawn) = transform.decode_drawn::<f32>(&file, SampleContext::new(7).rng())?;
/// let mask = drawn.mask(&mask)?;
/// let boxes = drawn.boxes(&boxes);
/// assert_eq!((image.shape(), mask.shape()), (&[3, 300, 300][..], &[300, 300][..]));
/// assert!(boxes[0].is_some() && boxes[1].is_none());
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Drawn {
    /// The steps that do not change the geometry come from here.
    transform: Transform,
    /// Size of the image.
    size: Size,
    /// Carried out one after the other. There is at least one, and only the last one mirrors.
    plans: Vec<Plan>,
}

impl Transform {
    /// Draws the random numbers for an image of `size`: its size after
    /// [`exif_orientation`](Self::exif_orientation). Draws as many numbers as [`load`](Self::load) does.
    ///
    /// # Errors
    /// Returns [`ImageProblem::TooLargeAfterTransform`].
    ///
    /// # Panics
    /// As for [`load`](Self::load).
    pub fn draw(&self, size: Size, rng: &mut impl Rng) -> Result<Drawn, ImageProblem> {
        let mut plans = Vec::with_capacity(1);
        let mut plan = Plan::whole(size);
        for step in self.steps() {
            if step.resizes() && !plan.can_resize() {
                canvas::check(plan.size())?;
                plans.push(plan);
                let mut next = Plan::whole(plan.size());
                if plan.is_flipped() {
                    next.flip();
                }
                plan = next;
            }
            step.extend(&mut plan, rng);
        }
        canvas::check(plan.size())?;
        plans.push(plan);
        Ok(Drawn { transform: self.clone(), size, plans })
    }

    /// Decodes and transforms an image, as [`decode`](Self::decode) does, and also returns what was drawn for
    /// it.
    ///
    /// # Errors
    /// Returns [`ImageProblem`].
    ///
    /// # Panics
    /// As for [`load`](Self::load).
    pub fn decode_drawn<P: Pixel>(
        &self,
        file: &[u8],
        rng: &mut impl Rng,
    ) -> Result<(Tensor<P>, Drawn), ImageProblem> {
        with_canvas(file, |canvas| self.decode_on(canvas, file, rng))
    }

    /// Decodes a file that was recognised, and transforms it.
    pub(super) fn decode_on<P: Pixel>(
        &self,
        canvas: &mut Canvas,
        file: &[u8],
        rng: &mut impl Rng,
    ) -> Result<(Tensor<P>, Drawn), ImageProblem> {
        let image =
            Phase::Decode.measure(|| decode::open(file, self.turns_upright(), &mut canvas.picture))?;
        let drawn = self.draw(image.size(), rng)?;
        let decode = |canvas: &mut Canvas, area| {
            Phase::Decode.measure(|| image.decode(area, &mut canvas.picture, &mut canvas.buffers))
        };
        Ok((Phase::Transform.measure(|| drawn.write(canvas, decode))?, drawn))
    }
}

/// Decodes a mask that is in memory: a PNG with a palette, of which the indices are read and not the colours,
/// or with grey pixels of at most 8 bits, which are not scaled. Returns a tensor of shape `[height, width]`.
///
/// # Errors
/// Returns [`ImageProblem`].
pub fn decode_mask(file: &[u8]) -> Result<Tensor<u8>, ImageProblem> {
    let (size, indices) = decode::indices(file)?;
    Ok(Tensor::from_vec(indices, [size.height as usize, size.width as usize])
        .expect("one byte for each pixel"))
}

impl Drawn {
    /// Decodes the content of an image file and transforms it. Returns a tensor of shape
    /// `[3, height, width]`.
    ///
    /// # Errors
    /// Returns [`ImageProblem::OtherSize`] if the image does not have the size that was given to
    /// [`draw`](Transform::draw), or why it cannot be decoded.
    pub fn image<P: Pixel>(&self, file: &[u8]) -> Result<Tensor<P>, ImageProblem> {
        with_canvas(file, |canvas| {
            let image = decode::open(file, self.transform.turns_upright(), &mut canvas.picture)?;
            self.check_size(image.size())?;
            self.write(canvas, |canvas, area| image.decode(area, &mut canvas.picture, &mut canvas.buffers))
        })
    }

    /// Transforms a mask of shape `[height, width]`, such as the class of each pixel. Each pixel becomes that
    /// of the nearest centre (Pillow's `NEAREST`, PyTorch's `nearest-exact`), so that no new values arise;
    /// around the image it is 0. Normalisation does not change a mask.
    ///
    /// # Errors
    /// Returns [`ImageProblem::OtherSize`] if the mask does not have the size of the image.
    pub fn mask<T: Element>(&self, mask: &Tensor<T>) -> Result<Tensor<T>, ImageProblem> {
        let side = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        match *mask.shape() {
            [height, width] => self.check_size(Size::new(side(width), side(height)))?,
            _ => self.check_size(Size::new(0, 0))?,
        }
        let size = self.result().size();
        let mut columns: Vec<_> = (0..size.width).map(Some).collect();
        if self.result().is_flipped() {
            columns.reverse();
        }
        let mut rows: Vec<_> = (0..size.height).map(Some).collect();
        for plan in self.plans.iter().rev() {
            columns.iter_mut().for_each(|x| *x = x.and_then(|x| plan.nearest_column(x)));
            rows.iter_mut().for_each(|y| *y = y.and_then(|y| plan.nearest_row(y)));
        }

        let (height, width) = (size.height as usize, size.width as usize);
        let mut out = Tensor::zeros([height, width]).expect("`draw` has checked the size");
        let pixels = out.as_mut_slice().expect("a new tensor has no clones");
        for (row, y) in pixels.chunks_exact_mut(width).zip(rows) {
            let Some(y) = y else { continue };
            let source = mask.row(y as usize);
            for (pixel, x) in row.iter_mut().zip(&columns) {
                if let Some(x) = x {
                    *pixel = source[*x as usize];
                }
            }
        }
        Ok(out)
    }

    /// Transforms boxes `[left, top, right, bottom]`, in pixels of the image, where `right` and `bottom` are
    /// the edges after the last pixel. Cuts them off at the edges of the result. A box of which nothing
    /// remains is `None`, so that its label can be dropped.
    pub fn boxes(&self, boxes: &[[f32; 4]]) -> Vec<Option<[f32; 4]>> {
        let transformed = |edges: &[f32; 4]| {
            let mut edges = edges.map(f64::from);
            for plan in &self.plans {
                edges = plan.box_of(edges);
            }
            if self.result().is_flipped() {
                let width = f64::from(self.result().size().width);
                edges = [width - edges[2], edges[1], width - edges[0], edges[3]];
            }
            let edges = edges.map(|edge| edge as f32);
            (edges[0] < edges[2] && edges[1] < edges[3]).then_some(edges)
        };
        boxes.iter().map(transformed).collect()
    }

    /// The plan whose result is that of the transform.
    fn result(&self) -> &Plan {
        self.plans.last().expect("there is at least one plan")
    }

    fn check_size(&self, found: Size) -> Result<(), ImageProblem> {
        let expected = self.size;
        if found == expected { Ok(()) } else { Err(ImageProblem::OtherSize { expected, found }) }
    }

    /// Writes the tensor. `decode` gets the area that the steps need, and decodes it into the picture of the
    /// canvas.
    pub(super) fn write<P: Pixel>(
        &self,
        canvas: &mut Canvas,
        decode: impl FnOnce(&mut Canvas, Area) -> Result<(), ImageProblem>,
    ) -> Result<Tensor<P>, ImageProblem> {
        let whole = Area::new(0, 0, self.size);
        decode(canvas, self.plans[0].needed().unwrap_or(whole))?;
        for plan in &self.plans[..self.plans.len() - 1] {
            canvas.flatten(plan);
        }
        let (mean, std) = self.transform.normalisation().unwrap_or(([0.0; 3], [1.0; 3]));
        let tables = array::from_fn(|channel| P::table(mean[channel], std[channel]));
        let size = self.result().size();
        let mut image = Tensor::zeros([3, size.height as usize, size.width as usize])
            .expect("`draw` has checked the size");
        let pixels = image.as_mut_slice().expect("a new tensor has no clones");
        canvas.write(self.result(), &tables, pixels);
        Ok(image)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::{SeedableRng, rngs::ChaCha8Rng};

    use super::{super::Step, *};

    /// A transform of up to four steps.
    fn transforms() -> impl Strategy<Value = Transform> {
        let side = 1u32..13;
        let step = prop_oneof![
            side.clone().prop_map(|size| Step::Resize { size }),
            (side.clone(), side.clone()).prop_map(|(height, width)| Step::ResizeExact { height, width }),
            (side.clone(), side.clone()).prop_map(|(height, width)| Step::CenterCrop { height, width }),
            (side.clone(), side).prop_map(|(height, width)| Step::RandomResizedCrop {
                height,
                width,
                scale: (0.1, 1.0),
                ratio: (0.5, 2.0)
            }),
            Just(Step::RandomHorizontalFlip { p: 0.5 }),
        ];
        prop::collection::vec(step, 0..4)
            .prop_map(|steps| steps.into_iter().fold(Transform::new(), Transform::step))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn image_mask_and_boxes_are_cut_alike(
            transform in transforms(), width in 1u32..13, height in 1u32..13, seed: u64,
            edges: [prop::sample::Index; 4],
        ) {
            let size = Size::new(width, height);
            let drawn = transform.draw(size, &mut ChaCha8Rng::seed_from_u64(seed)).unwrap();
            // A white rectangle, class 7, on black.
            let left = edges[0].index(width as usize);
            let top = edges[1].index(height as usize);
            let right = left + 1 + edges[2].index(width as usize - left);
            let bottom = top + 1 + edges[3].index(height as usize - top);
            let is_inside = |x: usize, y: usize| (left..right).contains(&x) && (top..bottom).contains(&y);
            let class = |pixel: usize| 7 * i64::from(is_inside(pixel % width as usize, pixel / width as usize));
            let classes: Vec<i64> = (0..(width * height) as usize).map(class).collect();
            let mut canvas = Canvas::default();
            canvas.picture.clear(size, 3);
            for (pixel, class) in canvas.picture.bytes_mut().chunks_exact_mut(3).zip(&classes) {
                pixel.fill(if *class == 7 { 255 } else { 0 });
            }

            let image: Tensor<u8> = drawn.write(&mut canvas, |_, _| Ok(())).unwrap();
            let mask = Tensor::from_vec(classes, [height as usize, width as usize]).unwrap();
            let mask = drawn.mask(&mask).unwrap();
            let edges = drawn.boxes(&[[left as f32, top as f32, right as f32, bottom as f32]])[0];
            let [rows, columns] = *mask.shape() else { unreachable!("a mask has two dimensions") };
            prop_assert_eq!(image.shape(), [3, rows, columns]);
            for y in 0..rows {
                for x in 0..columns {
                    let class = mask.row(y)[x];
                    match image.row(0)[y * columns + x] {
                        255 => prop_assert_eq!(class, 7, "white at {}, {}", x, y),
                        // A second scaling may round a trace of white to black.
                        0 if drawn.plans.len() == 1 => prop_assert_eq!(class, 0, "black at {}, {}", x, y),
                        _ => prop_assert!(class == 0 || class == 7),
                    }
                    if class == 7 && drawn.plans.len() == 1 {
                        let [x1, y1, x2, y2] = edges.unwrap();
                        let (x, y) = (x as f32 + 0.5, y as f32 + 0.5);
                        prop_assert!((x1 - 0.01..x2 + 0.01).contains(&x) && (y1 - 0.01..y2 + 0.01).contains(&y));
                    }
                }
            }
        }
    }

    #[test]
    fn boxes_are_cut_off_or_vanish() {
        let draw = |transform: Transform| {
            transform.draw(Size::new(100, 50), &mut ChaCha8Rng::seed_from_u64(1)).unwrap()
        };
        let boxes = [
            [10.0, 5.0, 60.0, 45.0],
            [0.0, 0.0, 25.0, 50.0],
            [74.5, 0.0, 100.0, 1.0],
            [30.0, 9.0, 30.0, 9.0],
        ];
        let found = draw(Transform::new().center_crop(50, 50)).boxes(&boxes);
        assert_eq!(found, [Some([0.0, 5.0, 35.0, 45.0]), None, Some([49.5, 0.0, 50.0, 1.0]), None]);

        let flipped = draw(Transform::new().random_horizontal_flip(1.0).resize_exact(100, 50));
        assert_eq!(flipped.boxes(&boxes[..1]), [Some([20.0, 10.0, 45.0, 90.0])]);

        let padded = draw(Transform::new().center_crop(60, 100).resize(30));
        assert_eq!(padded.boxes(&[[-10.0, -10.0, 200.0, 200.0]]), [Some([0.0, 2.5, 50.0, 27.5])]);
        assert_eq!(padded.boxes(&[[f32::NAN; 4], [0.0, f32::NAN, 9.0, 9.0]]), [None, None]);
    }

    #[test]
    fn a_mask_of_another_size_is_refused() {
        let drawn = Transform::new().draw(Size::new(4, 3), &mut ChaCha8Rng::seed_from_u64(1)).unwrap();
        for shape in [&[4, 3][..], &[1, 3, 4], &[12]] {
            let error = drawn.mask(&Tensor::<u8>::zeros(shape).unwrap()).unwrap_err();
            assert!(matches!(error, ImageProblem::OtherSize { .. }), "{shape:?}: {error}");
        }
        assert!(drawn.mask(&Tensor::<u8>::zeros([3, 4]).unwrap()).is_ok());
    }
}
