//! When streams begin to fetch the row groups of Parquet files on a server.

use loader_core::{IterableDataset, SampleContext, Shard};
use loader_data::{Record, Value};

use crate::{
    everywhere::watched,
    read_ahead::{open, parquet, requests, server},
};

/// Returns the number of the row group that a row of the two files is in.
fn group_of(row: &Record) -> usize {
    let Some(Value::Text(text)) = row.get("text") else { panic!("{row:?} has no text") };
    match text.strip_prefix("row ").unwrap().parse().unwrap() {
        row @ 0..37_usize => row / 10,
        row => 4 + (row - 37) / 4,
    }
}

#[test]
fn row_groups_are_fetched_in_the_order_in_which_a_shuffled_shard_opens_them() {
    let _watched = watched();
    let server = server();
    let stream = open(&server, &parquet(r#", "shuffle_blocks": 10"#));
    let mut cx = SampleContext::new(0);
    let mut opened = Vec::new();
    for item in stream.iter(Shard::new(0, 1), &mut cx).unwrap() {
        let group = group_of(&item.unwrap());
        if !opened.contains(&group) {
            opened.push(group);
            requests(&server, 10.min(opened.len() + 1));
        }
    }
    let fetched: Vec<_> =
        server.requests().into_iter().map(|it| (it.target, it.range.unwrap().start)).collect();
    let mut groups = fetched.clone();
    groups.sort();
    let number = |range| groups.iter().position(|group| group == range).unwrap();
    assert_eq!(fetched.iter().map(number).collect::<Vec<_>>(), opened);
}
