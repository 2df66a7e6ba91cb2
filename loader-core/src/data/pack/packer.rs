//! Collects documents and gives windows.

use std::{collections::VecDeque, mem, ops::Range};

use super::{LongDocuments, PackError, PackMethod, PackedWindow, Packing, TokenSequence, bins};
use crate::data::{
    collector::{Collector, CollectorPosition},
    random::{generator, shuffle},
};

/// The documents that are not yet in windows.
pub(crate) struct Packer<S> {
    packing: Packing,
    /// Key of the generators of the shard, of which each round of documents has one.
    key: [u8; 32],
    /// Documents with tokens, each with its position in the stream.
    documents: VecDeque<(u64, S)>,
    /// For [`PackMethod::Concatenate`], the number of tokens in `documents`.
    tokens: usize,
    /// Number of tokens of the first document that are in windows; for the other methods, the number of
    /// windows of `documents` that were given.
    given: usize,
    /// The windows of `documents`: pieces of documents.
    ready: VecDeque<Vec<(usize, Range<usize>)>>,
    has_ended: bool,
}

impl<S: TokenSequence> Packer<S> {
    pub(crate) fn new(packing: Packing, key: [u8; 32]) -> Self {
        Self {
            packing,
            key,
            documents: VecDeque::new(),
            tokens: 0,
            given: 0,
            ready: VecDeque::new(),
            has_ended: false,
        }
    }

    /// Cuts the next window of concatenated documents.
    fn cut(&mut self) -> Option<anyhow::Result<PackedWindow<S::Token>>> {
        let (window, left) = (self.packing.window, self.tokens - self.given);
        if left < window && (!self.has_ended || left == 0 || self.packing.drop_last) {
            return None;
        }
        let (mut room, mut start, mut pieces) = (window, self.given, Vec::new());
        let mut whole = 0;
        for (document, (_, tokens)) in self.documents.iter().enumerate() {
            let len = tokens.tokens().len();
            let end = len.min(start + room);
            pieces.push((document, start..end));
            room -= end - start;
            start = if end == len { 0 } else { end };
            whole += usize::from(end == len);
            if room == 0 {
                break;
            }
        }
        let made = self.make(&pieces);
        for (_, tokens) in self.documents.drain(..whole) {
            self.tokens -= tokens.tokens().len();
        }
        self.given = start;
        Some(made)
    }

    /// Packs the collected documents.
    fn pack(&mut self) {
        let Packing { window, method, long, .. } = self.packing;
        let mut pieces: Vec<(usize, Range<usize>)> = Vec::new();
        for (document, (_, tokens)) in self.documents.iter().enumerate() {
            let len = tokens.tokens().len();
            let starts =
                (0..len).step_by(window).take(if long == LongDocuments::Split { usize::MAX } else { 1 });
            pieces.extend(starts.map(|start| (document, start..len.min(start + window))));
        }
        let lens: Vec<usize> = pieces.iter().map(|(_, piece)| piece.len()).collect();
        let mut windows = bins::pack(&lens, window, method);
        if self.packing.shuffle {
            let oldest = self.position().oldest.unwrap_or_default();
            shuffle(&mut generator(self.key, oldest), &mut windows);
        }
        let pieces_of = |bin: Vec<usize>| bin.into_iter().map(|piece| pieces[piece].clone()).collect();
        self.ready = windows.into_iter().map(pieces_of).collect();
    }

    /// Drops the first window, and all documents after the last window.
    fn drop_window(&mut self) {
        self.ready.pop_front();
        self.given += 1;
        if self.ready.is_empty() {
            self.documents.clear();
            (self.tokens, self.given) = (0, 0);
        }
    }

    fn make(&self, pieces: &[(usize, Range<usize>)]) -> anyhow::Result<PackedWindow<S::Token>> {
        let pieces =
            pieces.iter().map(|(document, piece)| &self.documents[*document].1.tokens()[piece.clone()]);
        PackedWindow::new(pieces, self.packing.window, self.packing.pad)
    }
}

impl<S: TokenSequence> Collector<S> for Packer<S> {
    type Group = PackedWindow<S::Token>;

    fn push(&mut self, position: u64, document: S) -> anyhow::Result<()> {
        let (tokens, Packing { window, method, long, .. }) = (document.tokens().len(), self.packing);
        if method != PackMethod::Concatenate && long == LongDocuments::Error && tokens > window {
            return Err(PackError::TooLong { tokens, window }.into());
        }
        if tokens > 0 {
            self.tokens += tokens;
            self.documents.push_back((position, document));
        }
        if method != PackMethod::Concatenate && self.documents.len() == self.packing.look_ahead {
            self.pack();
        }
        Ok(())
    }

    fn end(&mut self) {
        if !mem::replace(&mut self.has_ended, true) && self.packing.method != PackMethod::Concatenate {
            self.pack();
        }
    }

    fn pop(&mut self) -> Option<anyhow::Result<PackedWindow<S::Token>>> {
        match self.packing.method {
            PackMethod::Concatenate => self.cut(),
            _ => {
                let window = self.make(self.ready.front()?);
                self.drop_window();
                Some(window)
            }
        }
    }

    fn position(&self) -> CollectorPosition {
        let Self { given, has_ended, .. } = *self;
        let oldest = self.documents.front().map(|(position, _)| *position);
        CollectorPosition { oldest, samples: self.documents.len(), given, has_ended }
    }

    fn skip(&mut self, given: usize) -> bool {
        match self.packing.method {
            PackMethod::Concatenate => {
                self.given = given;
                given == 0 || self.documents.front().is_some_and(|(_, first)| given < first.tokens().len())
            }
            _ => {
                let is_valid = given == 0 || given < self.ready.len();
                (0..given.min(self.ready.len())).for_each(|_| self.drop_window());
                is_valid
            }
        }
    }
}
