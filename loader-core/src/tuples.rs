//! What holds for tuples holds for each number of parts, written once.

/// Calls a macro with the names and places of tuples of 1 to 8 parts.
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
