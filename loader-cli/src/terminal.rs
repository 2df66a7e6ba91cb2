//! Standard error as the terminal on which the bar is drawn.

use std::io;

use console::Term;
use indicatif::TermLike;

/// Draws as `indicatif` does by itself, but leaves the cursor at the beginning of the last line instead of at
/// its end. There, the `^C` that a terminal shows after Ctrl-C would begin a new line, and part of the bar
/// would stay.
#[derive(Debug)]
pub(crate) struct Terminal(Term);

impl Terminal {
    pub(crate) fn stderr() -> Self {
        Self(Term::buffered_stderr())
    }
}

impl TermLike for Terminal {
    fn width(&self) -> u16 {
        self.0.size().1
    }

    fn height(&self) -> u16 {
        self.0.size().0
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.0.move_cursor_up(n)
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.0.move_cursor_down(n)
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.0.move_cursor_right(n)
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.0.move_cursor_left(n)
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.0.write_line(text)
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.0.write_str(text)
    }

    fn clear_line(&self) -> io::Result<()> {
        self.0.clear_line()
    }

    fn flush(&self) -> io::Result<()> {
        self.0.write_str("\r")?;
        self.0.flush()
    }
}
