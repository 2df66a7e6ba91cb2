//! Which requests fetch a set of ranges.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

/// Maximum number of bytes of a request. Also the size of the cache's blocks.
pub(super) const PIECE: u64 = 8 << 20;

/// Returns ordered pieces of at most [`PIECE`] bytes that cover `wanted`. A piece may have up to `gap` bytes between two
/// ranges.
pub(super) fn pieces(wanted: &[Range<u64>], gap: u64) -> Vec<Range<u64>> {
    let mut wanted: Vec<_> = wanted.iter().filter(|range| range.start < range.end).cloned().collect();
    wanted.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in wanted {
        match merged.last_mut() {
            Some(last) if range.start <= last.end.saturating_add(gap) => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    let split = |range: Range<u64>| {
        let end = range.end;
        range.step_by(PIECE as usize).map(move |start| start..end.min(start + PIECE))
    };
    merged.into_iter().flat_map(split).collect()
}

/// Number of bytes of all ranges together.
pub(super) fn bytes(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).fold(0, u64::saturating_add)
}

/// Returns the bytes of `range` out of the `pieces` that cover it.
pub(super) fn cut(pieces: &[Range<u64>], bytes: &[Bytes], range: &Range<u64>) -> Bytes {
    if range.start >= range.end {
        return Bytes::new();
    }
    let part = |index: usize| {
        let (start, end) = (range.start.max(pieces[index].start), range.end.min(pieces[index].end));
        bytes[index].slice((start - pieces[index].start) as usize..(end - pieces[index].start) as usize)
    };
    let first = pieces.partition_point(|piece| piece.end <= range.start);
    let last = pieces.partition_point(|piece| piece.start < range.end);
    if last - first == 1 {
        return part(first);
    }
    let mut whole = BytesMut::with_capacity((range.end - range.start) as usize);
    (first..last).for_each(|index| whole.extend_from_slice(&part(index)));
    whole.freeze()
}

#[cfg(test)]
mod tests {
    use super::{super::super::blob::GAP, *};

    #[test]
    #[allow(clippy::single_range_in_vec_init, reason = "one range is meant")]
    fn near_ranges_are_fetched_together_and_large_ones_in_pieces() {
        assert_eq!(pieces(&[10..20, 0..5, 7..7], GAP), [0..20]);
        assert_eq!(
            pieces(&[0..5, 5 + GAP..8 + GAP, 20 * GAP..20 * GAP + 1], GAP),
            [0..8 + GAP, 20 * GAP..20 * GAP + 1]
        );
        assert_eq!(
            pieces(&[1..2 * PIECE + 2], GAP),
            [1..PIECE + 1, PIECE + 1..2 * PIECE + 1, 2 * PIECE + 1..2 * PIECE + 2]
        );
        assert_eq!(pieces(&[0..5, 8..9, 12..13], 3), [0..13]);
        assert_eq!(pieces(&[0..5, 9..10], 3), [0..5, 9..10]);
        assert!(pieces(&[], GAP).is_empty());
    }

    #[test]
    fn ranges_are_cut_out_of_pieces() {
        let pieces = [10..14, 14..18, 30..32];
        let bytes = [Bytes::from_static(b"abcd"), Bytes::from_static(b"efgh"), Bytes::from_static(b"yz")];
        for (range, expected) in
            [(11..13, "bc"), (10..18, "abcdefgh"), (13..15, "de"), (17..18, "h"), (30..32, "yz"), (9..9, "")]
        {
            assert_eq!(cut(&pieces, &bytes, &range), expected.as_bytes(), "{range:?}");
        }
    }
}
