//! The output of a command, and its formats.

use std::io::{self, ErrorKind, Write as _};

use anyhow::Context as _;
use clap::ValueEnum;
use serde::Serialize;

/// The output of a command and its exit code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// The text for standard output.
    pub text: String,
    /// The text for standard error.
    pub notes: String,
    /// Whether the command succeeded.
    pub ok: bool,
}

impl Output {
    /// Returns the output of a success.
    pub fn ok(text: String) -> Self {
        Self::new(text, true)
    }

    /// Returns an output without notes.
    pub fn new(text: String, ok: bool) -> Self {
        Self {
            text,
            notes: String::new(),
            ok,
        }
    }
}

/// Format of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// A table for terminals.
    Table,
    /// The complete result as JSON.
    Json,
    /// The complete result as YAML.
    Yaml,
}

impl OutputFormat {
    /// Returns `answer` in this format. `table` makes the table.
    ///
    /// # Errors
    /// Returns an error only if `answer` can't be serialized as JSON or YAML.
    pub fn text(
        self,
        answer: &impl Serialize,
        table: impl FnOnce() -> String,
    ) -> anyhow::Result<String> {
        Ok(match self {
            Self::Table => table(),
            Self::Json => json(answer)?,
            Self::Yaml => serde_saphyr::to_string(answer)?,
        })
    }
}

/// Returns a value as indented JSON.
///
/// # Errors
/// Returns an error only if `value` can't be serialized as JSON.
pub fn json(value: &impl Serialize) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

/// Returns a value as a document of a stream of YAML documents.
///
/// # Errors
/// Returns an error only if `value` can't be serialized as YAML.
pub fn document(value: &impl Serialize) -> anyhow::Result<String> {
    Ok(format!("---\n{}", serde_saphyr::to_string(value)?))
}

/// Runs the request of a command. A DNS query that is still running at the end is not awaited.
///
/// # Errors
/// Returns the error of the request, or one if the runtime can't be started.
pub fn block_on<T>(request: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting the runtime failed")?;
    let result = runtime.block_on(request);
    runtime.shutdown_background();
    result
}

/// Prints to standard output. Returns `false` if the reader has closed standard output.
///
/// # Errors
/// Returns an error if standard output can't be written for another reason.
pub fn print(text: &str) -> io::Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The reader has closed standard output early, as `head` does.
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(false),
        other => other.map(|()| true),
    }
}
