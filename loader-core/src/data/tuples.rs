//! Implementations for tuples of any supported length.

/// Calls `$macro` once for each tuple length from 1 to 8, with the names of the type parameters and their
/// positions.
macro_rules! each_tuple {
    ($macro:ident) => {
        $macro!(A 0);
        $macro!(A 0, B 1);
        $macro!(A 0, B 1, C 2);
        $macro!(A 0, B 1, C 2, D 3);
        $macro!(A 0, B 1, C 2, D 3, E 4);
        $macro!(A 0, B 1, C 2, D 3, E 4, F 5);
        $macro!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
        $macro!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);
    };
}

pub(crate) use each_tuple;
