//! The names under which a program depends on the crate that the generated code uses. `tests/program` is a
//! program that depends on `loader` under its own name.

mod by_its_own_name {
    use loader_core::{Convert, collate::Stack, prelude::*};

    #[derive(Sample, Convert)]
    #[sample(derive(Debug))]
    struct Point {
        position: [f32; 2],
        name: String,
    }

    #[test]
    fn loader_core_is_found() {
        let mut stack = Point::stack(2);
        for n in 0..2_u8 {
            stack.push(Point { position: [n.into(), 0.5], name: n.to_string() }).unwrap();
        }
        let PointBatch { position, name } = stack.finish().unwrap();
        assert_eq!(
            (position.as_slice(), &name[..]),
            (&[0.0, 0.5, 1.0, 0.5][..], &["0".into(), "1".into()][..])
        );
        let PointItem { position, .. } = Point { position: [1.0, 2.0], name: "p".into() }.convert().unwrap();
        assert_eq!(position.as_slice(), [1.0, 2.0]);
    }

    #[derive(Sample)]
    struct Raw {
        r#type: Vec<f32>,
    }

    #[test]
    fn errors_name_a_raw_identifier_without_its_prefix() {
        let mut stack = Raw::stack(2);
        stack.push(Raw { r#type: vec![1.0] }).unwrap();
        let error = stack.push(Raw { r#type: vec![] }).unwrap_err();
        assert_eq!(error.field, ["type"]);
    }
}

mod renamed {
    use records::{Convert, collate::Stack, prelude::*};

    #[derive(Sample, Convert)]
    #[sample(crate = "records", derive(Debug))]
    struct Point {
        position: [f32; 2],
        name: String,
    }

    #[test]
    fn a_renamed_dependency_is_found_by_the_attribute() {
        let mut stack = Point::stack(1);
        stack.push(Point { position: [1.0, 0.5], name: "p".into() }).unwrap();
        let batch = stack.finish().unwrap();
        assert_eq!(batch.position.as_slice(), [1.0, 0.5]);
        assert_eq!(batch.name, ["p"]);
        let PointItem { name, .. } = Point { position: [1.0, 2.0], name: "p".into() }.convert().unwrap();
        assert_eq!(name, "p");
    }
}

mod exported_by_another_library {
    mod library {
        pub(crate) mod data {
            pub(crate) use records as loading;
        }
    }

    use library::data::loading::{collate::Stack, prelude::*};

    #[derive(Sample)]
    #[sample(crate = "crate::exported_by_another_library::library::data::loading")]
    struct Pair(u8, f32);

    #[test]
    fn a_path_of_several_parts_is_found() {
        let mut stack = Pair::stack(1);
        stack.push(Pair(1, 0.5)).unwrap();
        let PairBatch(numbers, _) = stack.finish().unwrap();
        assert_eq!(numbers.as_slice(), [1]);
    }
}
