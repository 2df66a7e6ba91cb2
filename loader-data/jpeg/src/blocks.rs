//! The inverse cosine transform, which computes the pixels of a block from its values. Algorithm, constants
//! and rounding are those of zune-jpeg (which has them from stb_image), so that the pixels are the same.

/// The 8 x 8 values of a block, row by row: cosine coefficients, not pixels.
pub(crate) type Block = [i32; 64];

/// Transforms the columns of a block, which is one of the two directions of the transform. The factors are in
/// units of 1/4096. `round` is added to each sum before the sum is shifted right by `SHIFT`.
#[inline(always)]
fn pass<const SHIFT: u32>(rows: [[i32; 8]; 8], round: i32) -> [[i32; 8]; 8] {
    let mut out = [[0; 8]; 8];
    for column in 0..8 {
        let at = |row: usize| rows[row][column];
        let add = i32::wrapping_add;
        let sub = i32::wrapping_sub;
        let mul = i32::wrapping_mul;

        let p1 = mul(add(at(2), at(6)), 2217);
        let t2 = add(p1, mul(at(6), -7567));
        let t3 = add(p1, mul(at(2), 3135));
        let t0 = add(at(0), at(4)) << 12;
        let t1 = sub(at(0), at(4)) << 12;
        let x0 = add(add(t0, t3), round);
        let x3 = add(sub(t0, t3), round);
        let x1 = add(add(t1, t2), round);
        let x2 = add(sub(t1, t2), round);

        let (t0, t1, t2, t3) = (at(7), at(5), at(3), at(1));
        let (p3, p4, p1, p2) = (add(t0, t2), add(t1, t3), add(t0, t3), add(t1, t2));
        let p5 = mul(add(p3, p4), 4816);
        let p1 = add(p5, mul(p1, -3685));
        let p2 = add(p5, mul(p2, -10497));
        let p3 = mul(p3, -8034);
        let p4 = mul(p4, -1597);
        let t3 = add(mul(t3, 6149), add(p1, p4));
        let t2 = add(mul(t2, 12586), add(p2, p3));
        let t1 = add(mul(t1, 8410), add(p2, p4));
        let t0 = add(mul(t0, 1223), add(p1, p3));

        out[0][column] = add(x0, t3) >> SHIFT;
        out[1][column] = add(x1, t2) >> SHIFT;
        out[2][column] = add(x2, t1) >> SHIFT;
        out[3][column] = add(x3, t0) >> SHIFT;
        out[4][column] = sub(x3, t0) >> SHIFT;
        out[5][column] = sub(x2, t1) >> SHIFT;
        out[6][column] = sub(x1, t2) >> SHIFT;
        out[7][column] = sub(x0, t3) >> SHIFT;
    }
    out
}

#[inline(always)]
fn transposed(rows: [[i32; 8]; 8]) -> [[i32; 8]; 8] {
    std::array::from_fn(|row| std::array::from_fn(|column| rows[column][row]))
}

/// Writes the pixels of `block` to eight rows of `out`, which start `width` bytes apart, and sets all values
/// of the block to 0. `last` is the position, in zigzag order, after which all values are 0.
#[inline(always)]
pub(crate) fn write(block: &mut Block, last: usize, out: &mut [u8], width: usize) {
    if last == 0 {
        // All pixels are an eighth of the first value, rounded (4), plus 128 (1024 / 8).
        let pixel = (block[0].wrapping_add(4 + 1024) >> 3).clamp(0, 255) as u8;
        for row in out.chunks_mut(width).take(8) {
            row[..8].fill(pixel);
        }
        block[0] = 0;
        return;
    }
    transform(block, out, width);
}

#[inline(always)]
fn transform(block: &mut Block, out: &mut [u8], width: usize) {
    /// Added before the shift by 17: a half to round, 128 to move the pixels from -128..128 to 0..256, and
    /// the 512 that zune-jpeg adds too.
    const ROUND_AND_LEVEL: i32 = 512 + (1 << 16) + (128 << 17);

    let mut rows = [[0; 8]; 8];
    for (row, values) in rows.iter_mut().zip(block.as_chunks::<8>().0) {
        *row = *values;
    }
    block.fill(0);
    let columns = transposed(pass::<10>(rows, 512));
    let rows = transposed(pass::<17>(columns, ROUND_AND_LEVEL));
    for (row, out) in rows.iter().zip(out.chunks_mut(width)) {
        let pixels = row.map(|value| value.clamp(0, 255) as u8);
        out[..8].copy_from_slice(&pixels);
    }
}
