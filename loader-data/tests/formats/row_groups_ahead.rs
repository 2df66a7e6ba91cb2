//! When streams begin to fetch the row groups of Parquet files on a server.

use loader_core::{DataLoader, IterableDataset, SampleContext, Shard};
use loader_data::{Column, ParquetOptions, Record, RecordStream, Value};
use serde::{Deserialize, Serialize};

use crate::{
    everywhere::watched,
    read_ahead::{SLOTS, open, options, parquet, requests, server},
};

/// When this stream reads its third row, it fills the memory of the dataset, so the shard drops the bytes read ahead.
#[derive(Serialize, Deserialize)]
struct Greedy(RecordStream);

impl IterableDataset for Greedy {
    type Sample = Record;

    fn iter(
        &self,
        shard: Shard,
        cx: &mut SampleContext,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<Record>> + Send> {
        let memory = cx.memory().clone();
        let items = self.0.iter(shard, cx)?;
        Ok(items.enumerate().map(move |(number, item)| {
            if number == 2 {
                // All bytes but those of the open row group.
                let limit = memory.limit().unwrap();
                let largest = (0..limit).step_by(16).find_map(|less| memory.reserve(limit - less).ok());
                assert!(largest.unwrap().bytes() > limit / 2);
            }
            item
        }))
    }
}

/// Returns the number of the row group that has the row of the two files with this text.
fn group_of(text: &str) -> usize {
    match text.strip_prefix("row ").unwrap().parse().unwrap() {
        row @ 0..37_usize => row / 10,
        row => 4 + (row - 37) / 4,
    }
}

#[test]
fn a_program_that_looks_at_the_first_rows_fetches_one_row_group() {
    let _watched = watched();
    let server = server();
    let open = || ParquetOptions::new("s3://bucket/{0..1}.parquet").open_stream();
    let stream = options(&server).scope(open).unwrap();
    // An eighth of the first row group is 1 of 10 rows, and 1 of the 8 rows from row 12 on.
    for position in [0, 12] {
        server.requests();
        let mut cx = SampleContext::new(0);
        let mut items = stream.iter_at(Shard::new(0, 1), position, &mut cx).unwrap().unwrap();
        items.next().unwrap().unwrap();
        assert_eq!(requests(&server, 1), 1, "from row {position} on");
        items.next().unwrap().unwrap();
        assert_eq!(requests(&server, 2), 2, "from row {position} on");
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
        let row = item.unwrap();
        let Some(Value::Text(text)) = row.get("text") else { panic!("{row:?} has no text") };
        let group = group_of(text);
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

#[test]
fn a_shard_reads_ahead_again_after_a_reservation_has_dropped_what_it_had_read_ahead() {
    let _watched = watched();
    let server = server();
    let stream = Greedy(open(&server, &parquet(r#", "shuffle_blocks": 1"#)));
    let builder = DataLoader::stream(stream).shards(1).batch_size(1);
    let loader = builder.memory_limit(SLOTS + (1 << 16)).shared_memory_limit(SLOTS).build().unwrap();
    let (mut rows, mut last) = (0, None);
    let mut opened = 0;
    for batch in loader.iter().unwrap() {
        let batch = batch.unwrap();
        let Some(Column::Texts(texts)) = batch.get("text") else { panic!("{batch:?} has no text") };
        let group = group_of(&texts[0]);
        if last.replace(group) != Some(group) {
            opened += 1;
            // The second row group is fetched twice.
            let expected = if opened == 1 { 2 } else { 10.min(opened + 1) + 1 };
            assert_eq!(requests(&server, expected), expected, "row group {opened} is open");
        }
        rows += 1;
    }
    assert_eq!((rows, opened), (60, 10));
}
