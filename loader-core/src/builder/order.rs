//! The batch sampler that the options describe if the user gives no sampler.

use crate::{
    data::sampler::{
        BatchSampler, DistributedSampler, EpochOrder, FixedBatches, RandomSampler, Sampler,
        SequentialSampler, Sharing, share,
    },
    error::Error,
    launch::memory,
    options::{LoaderOptions, Order, default},
};

impl LoaderOptions {
    /// Returns the batch sampler of a loader with these options, without a sampler of the user's, for a
    /// dataset of `samples` samples. It depends on `batch_size`, `shuffle`, `drop_last`, `order`, `rank`,
    /// `world_size` and `group_size`.
    ///
    /// # Errors
    /// - [`Error::InvalidOption`]: the batch size is 0, `rank` is not below `world_size`, only one of these
    ///   two is set, `group_size` does not divide `world_size`, or the machine's memory cannot hold the order or a
    ///   batch of indices.
    /// - [`Error::EmptyDataset`]: `shuffle` is set and there are no samples, as in PyTorch.
    ///
    /// # Examples
    /// ```
    /// use loader_core::{LoaderOptions, Order, sampler::{BatchSampler, Epoch}};
    ///
    /// let options = LoaderOptions::default().batch_size(4).shuffle(true);
    /// let batches = options.batch_sampler(10)?.batches(Epoch::new(42, 0).order(Order::Torch));
    /// assert!(batches.eq([vec![6, 5, 4, 0], vec![8, 9, 2, 1], vec![3, 7]]));
    /// # Ok::<(), loader_core::Error>(())
    /// ```
    pub fn batch_sampler(&self, samples: usize) -> Result<Box<dyn BatchSampler>, Error> {
        self.check_batch_size()?;
        if samples == 0 && self.shuffle == Some(true) {
            return Err(Error::EmptyDataset);
        }
        self.check_size(samples)?;
        Ok(self.in_batches(self.sampler(samples)?))
    }

    /// Groups the indices of `sampler` into batches.
    pub(super) fn in_batches(&self, sampler: Box<dyn Sampler>) -> Box<dyn BatchSampler> {
        let batch_size = self.batch_size.unwrap_or_else(default::batch_size);
        Box::new(FixedBatches::new(sampler, batch_size, self.drop_last.unwrap_or_else(default::drop_last)))
    }

    pub(super) fn check_batch_size(&self) -> Result<(), Error> {
        match self.batch_size {
            Some(0) => invalid("batch_size", "0 samples do not make a batch; use 1 or more"),
            _ => Ok(()),
        }
    }

    /// Checks that the machine has enough memory for the order and for the indices of a batch. Without this
    /// check, the allocator would end the process.
    fn check_size(&self, samples: usize) -> Result<(), Error> {
        let memory = memory::of_machine().unwrap_or(u64::MAX >> 1);
        let is_too_large = |indices: usize| {
            let bytes = indices.checked_mul(size_of::<usize>()).and_then(|bytes| isize::try_from(bytes).ok());
            bytes.is_none_or(|bytes| bytes as u64 > memory)
        };
        let problem = |what: &str, indices: usize| {
            format!("{what} of {indices} indices is larger than the machine's memory of {memory} bytes")
        };
        // The native order of a long dataset is computed index by index, in constant memory.
        let order_takes_memory = self.shuffle == Some(true) && self.order.is_some_and(Order::is_torch);
        if order_takes_memory && is_too_large(samples) {
            let problem = problem("a random order", samples);
            return invalid("shuffle", format!("{problem}; use order \"native\""));
        }
        let batch = self.batch_size.unwrap_or_else(default::batch_size).min(samples);
        if is_too_large(batch) {
            return invalid("batch_size", format!("{}; use smaller batches", problem("a batch", batch)));
        }
        Ok(())
    }

    fn sampler(&self, samples: usize) -> Result<Box<dyn Sampler>, Error> {
        let (shuffle, drop_last) = (
            self.shuffle.unwrap_or_else(default::shuffle),
            self.drop_last.unwrap_or_else(default::drop_last),
        );
        Ok(match self.share(samples)? {
            Some(sampler) => Box::new(sampler.shuffle(shuffle).drop_last(drop_last)),
            None if shuffle => Box::new(RandomSampler::of_loader(samples)),
            None => Box::new(SequentialSampler::new(samples)),
        })
    }

    /// Returns how this process shares the order of an epoch with other ranks. Without a rank, it is the only one.
    pub(super) fn sharing(&self, samples: usize) -> Result<Sharing, Error> {
        let shuffle = self.shuffle.unwrap_or_else(default::shuffle);
        let order = match self.share(samples)? {
            None if shuffle => EpochOrder::Random(RandomSampler::of_loader(samples)),
            own => {
                EpochOrder::Distributed(own.unwrap_or_else(|| share(samples, 1, 0, false)).shuffle(shuffle))
            }
        };
        let (rank, world_size) = self.group()?.unwrap_or((0, 1));
        let batch_size = self.batch_size.unwrap_or_else(default::batch_size);
        let drop_last = self.drop_last.unwrap_or_else(default::drop_last);
        Ok(Sharing { order, rank, world_size, batch_size, drop_last })
    }

    /// The sampler of this process's share, if `rank` and `world_size` are set.
    fn share(&self, samples: usize) -> Result<Option<DistributedSampler>, Error> {
        let Some((rank, world_size)) = self.group()? else { return Ok(None) };
        of_rank(samples, rank, world_size).map(Some)
    }

    /// Returns the number of this process's group, and the number of groups: each group loads a share of the
    /// samples. Without `group_size`, each process is a group. Returns `None` without a rank.
    ///
    /// # Errors
    /// [`Error::InvalidOption`]: only one of `rank` and `world_size` is set, `rank` is not below `world_size`, or
    /// `group_size` does not divide `world_size`.
    pub fn group(&self) -> Result<Option<(usize, usize)>, Error> {
        let size = self.group_size.unwrap_or_else(default::group_size);
        if size == 0 {
            return invalid("group_size", "a group has at least one rank; use 1 or more");
        }
        let Some((rank, world_size)) = self.rank_and_world_size()? else { return Ok(None) };
        of_rank(0, rank, world_size)?;
        // A program that sets `group_size` may also be tried in one process.
        let size = if world_size == 1 { 1 } else { size };
        if !world_size.is_multiple_of(size) {
            let problem = format!(
                "{world_size} ranks cannot be divided into groups of {size}; use a divisor of the number of ranks"
            );
            return invalid("group_size", problem);
        }
        Ok(Some((rank / size, world_size / size)))
    }

    fn rank_and_world_size(&self) -> Result<Option<(usize, usize)>, Error> {
        match (self.rank, self.world_size) {
            (None, None) => Ok(None),
            (Some(rank), Some(world_size)) => Ok(Some((rank, world_size))),
            (Some(_), None) => invalid("rank", "requires world_size; set both, or leave both out"),
            (None, Some(_)) => invalid("world_size", "requires rank; set both, or leave both out"),
        }
    }

    /// Returns the number of this process's first shard of an iterable dataset among the shards of all
    /// processes, and the number of all these shards. Each process has `shards` shards; see
    /// [`ShardLayout`](crate::data::fetch::ShardLayout).
    pub(super) fn first_and_all_shards(&self, shards: usize) -> Result<(usize, usize), Error> {
        let (rank, world_size) = self.group()?.unwrap_or((0, 1));
        match shards.checked_mul(world_size) {
            Some(all) => Ok((rank, all)),
            None => {
                let problem =
                    format!("{world_size} processes with {shards} shards each are too many; use fewer");
                invalid("world_size", problem)
            }
        }
    }
}

fn of_rank(samples: usize, rank: usize, world_size: usize) -> Result<DistributedSampler, Error> {
    let option = if world_size == 0 { "world_size" } else { "rank" };
    DistributedSampler::new(samples, world_size, rank)
        .or_else(|error| invalid(option, format!("{error} (see `distributed`)")))
}

pub(super) fn invalid<T>(option: &'static str, problem: impl Into<String>) -> Result<T, Error> {
    Err(Error::invalid_option(option, problem))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::random::Epoch;

    fn options(rank: Option<usize>, world_size: Option<usize>) -> LoaderOptions {
        LoaderOptions { rank, world_size, batch_size: Some(2), ..LoaderOptions::default() }
    }

    fn batches(options: &LoaderOptions, samples: usize) -> Vec<Vec<usize>> {
        options.batch_sampler(samples).unwrap().batches(Epoch::new(0, 0)).collect()
    }

    #[test]
    fn the_ranks_of_a_group_load_the_same_batches() {
        let options = |rank, world_size| LoaderOptions { group_size: Some(2), ..options(rank, world_size) };
        let batches = |options: LoaderOptions| {
            let batches = options.shuffle(true).batch_sampler(12).unwrap();
            batches.batches(Epoch::new(3, 0)).collect::<Vec<_>>()
        };
        for rank in 0..6 {
            let group = LoaderOptions { rank: Some(rank / 2), world_size: Some(3), ..options(None, None) };
            let group = LoaderOptions { group_size: None, ..group };
            assert_eq!(batches(options(Some(rank), Some(6))), batches(group));
            assert_eq!(options(Some(rank), Some(6)).first_and_all_shards(4).unwrap(), (rank / 2, 12));
        }
        // Without a rank, the process loads the whole dataset.
        assert_eq!(batches(options(None, None)).concat().len(), 12);
        let message = |options: LoaderOptions| options.batch_sampler(10).unwrap_err().to_string();
        let uneven =
            "group_size: 5 ranks cannot be divided into groups of 2; use a divisor of the number of ranks";
        assert_eq!(message(options(Some(0), Some(5))), uneven);
        let refused = "rank: invalid rank 6, rank should be in the interval [0, 5] (see `distributed`)";
        assert_eq!(message(options(Some(6), Some(6))), refused);
        let without_groups = LoaderOptions { group_size: None, ..options(Some(6), Some(6)) };
        assert_eq!(without_groups.group().unwrap_err().to_string(), refused);
        assert_eq!(options(Some(0), Some(1)).group().unwrap(), Some((0, 1)), "one process is one group");
        let none = message(options(Some(0), Some(4)).group_size(0));
        assert_eq!(none, "group_size: a group has at least one rank; use 1 or more");
    }

    #[test]
    fn each_process_has_its_share() {
        assert_eq!(batches(&options(None, None), 3), [vec![0, 1], vec![2]]);
        assert_eq!(batches(&options(Some(3), Some(4)), 10), [vec![3, 7], vec![1]]);
        let drop_last =
            LoaderOptions { drop_last: Some(true), batch_size: Some(1), ..options(Some(3), Some(4)) };
        assert_eq!(batches(&drop_last, 10), [[3], [7]]);
    }

    // PyTorch: 70
    #[test]
    fn with_drop_last_no_sample_comes_twice() {
        let shares =
            (0..4).map(|rank| LoaderOptions { drop_last: Some(true), ..options(Some(rank), Some(4)) });
        let mut all: Vec<usize> = shares.flat_map(|options| batches(&options, 9).concat()).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..8));
    }

    #[test]
    fn invalid_options_are_refused() {
        let message = |rank, world_size| options(rank, world_size).batch_sampler(10).unwrap_err().to_string();
        assert_eq!(
            message(Some(4), Some(4)),
            "rank: invalid rank 4, rank should be in the interval [0, 3] (see `distributed`)"
        );
        assert_eq!(
            message(Some(0), Some(0)),
            "world_size: the number of processes is 0; it includes this process and must be at least 1 (see `distributed`)"
        );
        assert_eq!(message(Some(0), None), "rank: requires world_size; set both, or leave both out");
        assert_eq!(message(None, Some(2)), "world_size: requires rank; set both, or leave both out");
        let shuffled = LoaderOptions { shuffle: Some(true), ..LoaderOptions::default() };
        assert!(matches!(shuffled.batch_sampler(0), Err(Error::EmptyDataset)));
        assert!(
            batches(&options(None, None), 0).is_empty() && batches(&options(Some(1), Some(4)), 0).is_empty()
        );
        assert!(shuffled.batch_sampler(usize::MAX).unwrap().batches(Epoch::new(0, 0)).next().is_some());
        let torch = LoaderOptions { order: Some(Order::Torch), ..shuffled };
        let huge = torch.batch_sampler(usize::MAX).unwrap_err().to_string();
        assert!(huge.starts_with("shuffle: a random order of 18446744073709551615 indices"), "{huge}");
        let whole = LoaderOptions { batch_size: Some(usize::MAX), ..LoaderOptions::default() };
        assert!(matches!(
            whole.batch_sampler(usize::MAX),
            Err(Error::InvalidOption { option: "batch_size", .. })
        ));
        let no_batch = LoaderOptions { batch_size: Some(0), ..LoaderOptions::default() };
        assert!(matches!(no_batch.batch_sampler(1), Err(Error::InvalidOption { option: "batch_size", .. })));
    }
}
