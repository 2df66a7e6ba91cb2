//! Loads a file and transforms it into a tensor.

use std::{
    cell::RefCell,
    fs::{self, OpenOptions},
    io::{self, Read},
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::Path,
};

use loader_core::{Phase, Tensor};
use rand::Rng;
use rustix::fs::OFlags;

use super::{
    super::{
        decode,
        error::{ImageError, ImageProblem},
    },
    Pixel, Transform,
    canvas::Canvas,
};

/// Maximum size in bytes of each buffer that is kept for the next image: enough for 22 megapixels.
const MAX_KEPT: usize = 64 << 20;

/// Default of [`ImageFolder::max_file_bytes`](crate::ImageFolder::max_file_bytes), in bytes: 256 MiB.
pub const MAX_FILE_BYTES: u64 = 256 << 20;

thread_local! {
    /// Buffers that live as long as the thread, so that most samples allocate their tensor only.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

#[derive(Default)]
struct Scratch {
    file: Vec<u8>,
    canvas: Canvas,
}

impl Transform {
    /// Loads the image at `path` and transforms it. Returns a tensor of shape `[3, height, width]`.
    ///
    /// Use this method in your own dataset, if its labels do not come from folders. Formats and limits are
    /// those of [`ImageFolder`](crate::ImageFolder), with files of up to [`MAX_FILE_BYTES`] bytes. `u8`
    /// pixels are not normalised.
    ///
    /// # Errors
    /// Returns [`ImageError`], which names the file.
    ///
    /// # Panics
    /// If a value of the transform is out of bounds, this may panic or return arbitrary pixels. Call
    /// [`validate`](Self::validate) first.
    ///
    /// # Examples
    /// ```
    /// use loader_core::SampleContext;
    /// use loader_data::Transform;
    ///
    /// let mut cx = SampleContext::new(7);
    /// let image = Transform::new().resize(100).load::<u8>("photos/table/coffee.jpg", cx.rng())?;
    /// assert_eq!(image.shape(), [3, 100, 150]);
    /// # anyhow::Ok(())
    /// ```
    pub fn load<P: Pixel>(
        &self,
        path: impl AsRef<Path>,
        rng: &mut impl Rng,
    ) -> Result<Tensor<P>, ImageError> {
        self.load_up_to(MAX_FILE_BYTES, path.as_ref(), rng)
    }

    /// Decodes the content of an image file that is in memory, for example a field of a sample from a tar
    /// archive, and transforms it. Returns a tensor of shape `[3, height, width]`, as [`load`](Self::load)
    /// does.
    ///
    /// # Errors
    /// Returns [`ImageProblem`].
    ///
    /// # Panics
    /// As for [`load`](Self::load).
    ///
    /// # Examples
    /// ```
    /// use loader_core::SampleContext;
    /// use loader_data::Transform;
    ///
    /// let file = std::fs::read("photos/table/coffee.jpg")?;
    /// let image = Transform::new().resize(100).decode::<u8>(&file, SampleContext::new(7).rng())?;
    /// assert_eq!(image.shape(), [3, 100, 150]);
    /// # anyhow::Ok(())
    /// ```
    pub fn decode<P: Pixel>(&self, file: &[u8], rng: &mut impl Rng) -> Result<Tensor<P>, ImageProblem> {
        Ok(self.decode_drawn(file, rng)?.0)
    }

    /// As [`load`](Self::load), for a file of at most `max` bytes.
    pub(crate) fn load_up_to<P: Pixel>(
        &self,
        max: u64,
        path: &Path,
        rng: &mut impl Rng,
    ) -> Result<Tensor<P>, ImageError> {
        let image = SCRATCH.with_borrow_mut(|Scratch { file, canvas }| {
            let image = Phase::Read
                .measure(|| read(path, max, file))
                .and_then(|()| self.decode_on(canvas, file, rng));
            canvas.release(MAX_KEPT);
            if file.capacity() > MAX_KEPT {
                *file = Vec::new();
            }
            image
        });
        let image = image.map(|(image, _)| image);
        image.map_err(|problem| ImageError { path: path.to_owned(), problem })
    }
}

/// Calls `decode` with the buffers of this thread, if `file` starts like an image.
pub(super) fn with_canvas<T>(
    file: &[u8],
    decode: impl FnOnce(&mut Canvas) -> Result<T, ImageProblem>,
) -> Result<T, ImageProblem> {
    decode::recognise(&file[..file.len().min(decode::START)])?;
    SCRATCH.with_borrow_mut(|Scratch { canvas, .. }| {
        let decoded = decode(canvas);
        canvas.release(MAX_KEPT);
        decoded
    })
}

/// Reads a file into `bytes`, if it is a regular file of at most `max` bytes and starts like an image. Other
/// files fail without a wait: of a regular file only the first bytes are read, and `O_NONBLOCK` keeps the
/// opening of a named pipe from waiting for a writer.
fn read(path: &Path, max: u64, bytes: &mut Vec<u8>) -> Result<(), ImageProblem> {
    let open = |flags: OFlags| {
        let flags = flags | OFlags::NOCTTY;
        OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)
    };
    let opened = open(OFlags::NONBLOCK).or_else(|error| {
        // Opening a regular file fails with `WouldBlock` if another program holds a lease on it, or if it is
        // on slow storage. Such a file can be opened after a wait.
        let must_wait = error.kind() == io::ErrorKind::WouldBlock
            && fs::metadata(path).is_ok_and(|metadata| metadata.is_file());
        if must_wait { open(OFlags::empty()) } else { Err(error) }
    });
    let file = opened.map_err(ImageProblem::Unreadable)?;
    let metadata = file.metadata().map_err(ImageProblem::Unreadable)?;
    if !metadata.is_file() {
        return Err(ImageProblem::NotAFile { found: kind(metadata.file_type()) });
    }
    let check_size =
        |bytes| if bytes > max { Err(ImageProblem::FileTooLarge { bytes, max }) } else { Ok(()) };
    check_size(metadata.len())?;

    bytes.clear();
    let mut start = (&file).take(decode::START as u64);
    start.read_to_end(bytes).map_err(ImageProblem::Unreadable)?;
    decode::recognise(bytes)?;
    let more = usize::try_from(metadata.len()).unwrap_or(usize::MAX).saturating_sub(bytes.len());
    bytes.try_reserve_exact(more).map_err(|error| ImageProblem::Unreadable(error.into()))?;
    // Reads up to one byte more than the limit, to notice a file that has grown beyond it.
    let mut rest = (&file).take((max - bytes.len() as u64).saturating_add(1));
    rest.read_to_end(bytes).map_err(ImageProblem::Unreadable)?;
    check_size(bytes.len() as u64)
}

fn kind(file: fs::FileType) -> &'static str {
    if file.is_fifo() {
        "a named pipe"
    } else if file.is_dir() {
        "a folder"
    } else if file.is_char_device() || file.is_block_device() {
        "a device"
    } else {
        "a special file"
    }
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::ChaCha8Rng};

    use super::{
        super::{super::picture::Size, plan::Plan},
        *,
    };

    /// A picture that is smooth in red, steep in green and striped in blue.
    fn canvas(width: u32, height: u32) -> Canvas {
        let mut canvas = Canvas::default();
        canvas.picture.clear(Size::new(width, height), 3);
        for (number, pixel) in canvas.picture.bytes_mut().chunks_exact_mut(3).enumerate() {
            let (x, y) = (number as u32 % width, number as u32 / width);
            pixel.copy_from_slice(&[(x + y) as u8, (x * y) as u8, if x % 5 < 2 { 255 } else { 0 }]);
        }
        canvas
    }

    fn apply(transform: Transform, canvas: &mut Canvas) -> Tensor<u8> {
        try_apply(transform, canvas).unwrap()
    }

    fn try_apply<P: Pixel>(transform: Transform, canvas: &mut Canvas) -> Result<Tensor<P>, ImageProblem> {
        let size = canvas.picture.area().size;
        transform.draw(size, &mut ChaCha8Rng::seed_from_u64(1))?.write(canvas, |_, _| Ok(()))
    }

    /// Returns the pixels of a part of a `[3, height, width]` tensor.
    fn part(image: &Tensor<u8>, x: usize, y: usize, width: usize, height: usize) -> Vec<u8> {
        let [_, rows, columns] = *image.shape() else { unreachable!("images have three dimensions") };
        let pixels = image.as_slice();
        let row = |channel: usize, row: usize| &pixels[(channel * rows + y + row) * columns + x..][..width];
        (0..3).flat_map(|channel| (0..height).flat_map(move |y| row(channel, y))).copied().collect()
    }

    fn largest_difference(one: &[u8], other: &[u8]) -> u8 {
        assert_eq!(one.len(), other.len());
        one.iter().zip(other).map(|(one, other)| one.abs_diff(*other)).max().unwrap()
    }

    #[test]
    fn scaling_only_the_crop_gives_the_same_pixels() {
        for (width, height) in [(120, 90), (61, 97), (40, 33)] {
            let whole = apply(Transform::new().resize(48), &mut canvas(width, height));
            let crop = apply(Transform::new().resize(48).center_crop(40, 36), &mut canvas(width, height));
            let x = ((whole.shape()[2] - 36) as f64 / 2.0).round_ties_even() as usize;
            let y = ((whole.shape()[1] - 40) as f64 / 2.0).round_ties_even() as usize;
            assert!(largest_difference(crop.as_slice(), &part(&whole, x, y, 36, 40)) <= 1);
        }
    }

    #[test]
    fn a_crop_is_scaled_without_pixels_outside_of_it() {
        let mut cut = canvas(80, 60);
        let mut plan = Plan::whole(cut.picture.area().size);
        plan.crop(20, 15, Size::new(40, 30));
        cut.flatten(&plan);
        let expected = apply(Transform::new().resize(17), &mut cut);
        let found = apply(Transform::new().center_crop(30, 40).resize(17), &mut canvas(80, 60));
        assert_eq!(found, expected);
    }

    #[test]
    fn steps_can_scale_twice() {
        let once = apply(Transform::new().resize_exact(20, 30), &mut canvas(80, 60));
        let twice = apply(Transform::new().resize_exact(40, 60).resize_exact(20, 30), &mut canvas(80, 60));
        assert_eq!(once.shape(), twice.shape());
        assert_ne!(once, twice);
        let mut between = canvas(80, 60);
        let mut plan = Plan::whole(between.picture.area().size);
        plan.resize(Size::new(60, 40));
        between.flatten(&plan);
        assert_eq!(apply(Transform::new().resize_exact(20, 30), &mut between), twice);
    }

    #[test]
    fn an_image_smaller_than_its_crop_is_surrounded_by_black() {
        let image = apply(Transform::new().center_crop(8, 9), &mut canvas(4, 5));
        let inside = apply(Transform::new(), &mut canvas(4, 5));
        assert_eq!(part(&image, 2, 1, 4, 5), inside.as_slice());
        let sum = |image: &Tensor<u8>| image.as_slice().iter().map(|&byte| u32::from(byte)).sum::<u32>();
        assert_eq!(sum(&image), sum(&inside), "all other pixels are 0");

        let transform = Transform::new().center_crop(8, 9).normalise([0.5; 3], [0.5; 3]);
        let normalised: Tensor<f32> = try_apply(transform, &mut canvas(4, 5)).unwrap();
        assert_eq!(normalised.as_slice()[0], -1.0, "black before normalisation, as torchvision pads");

        let scaled = apply(Transform::new().center_crop(8, 8).resize(4), &mut canvas(4, 4));
        assert_eq!((scaled.shape(), scaled.as_slice()[0]), ([3, 4, 4].as_slice(), 0));
    }

    #[test]
    fn flips_before_and_after_other_steps_agree() {
        let flip = |transform: Transform| transform.random_horizontal_flip(1.0);
        let crop = |transform: Transform| transform.center_crop(10, 16);
        let after = apply(flip(crop(Transform::new())), &mut canvas(40, 30));
        let before = apply(crop(flip(Transform::new())), &mut canvas(40, 30));
        assert_eq!(before, after);
        let twice = apply(flip(crop(flip(Transform::new()))), &mut canvas(40, 30));
        assert_eq!(twice, apply(crop(Transform::new()), &mut canvas(40, 30)));
        let padded = |transform: Transform| transform.center_crop(33, 43);
        let before = apply(padded(flip(Transform::new())), &mut canvas(40, 30));
        assert_eq!(
            part(&before, 1, 1, 40, 30),
            apply(flip(Transform::new()), &mut canvas(40, 30)).as_slice()
        );
    }

    #[test]
    fn an_image_that_a_resize_makes_too_large_is_refused() {
        let mut tall = canvas(1, 2000);
        let error = try_apply::<u8>(Transform::new().resize(2000), &mut tall);
        assert!(matches!(
            error,
            Err(ImageProblem::TooLargeAfterTransform { width: 2000, height: 4_000_000 })
        ));
    }
}
