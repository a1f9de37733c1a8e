//! Reads files of other types than policies, and reports every mistake with its line, its field and
//! a correct value, like those of policies. The caller interprets the value. This module adds
//! positions and suggestions.

use serde::de::DeserializeOwned;

use super::decode::{self, Decoded};
use super::node::Node;
use super::parse;
use super::path::{Path, Segment};
use super::problem::Problem;

/// A file of one document, as far as it could be read.
#[derive(Debug)]
pub struct Parsed<T> {
    file: String,
    node: Node,
    value: T,
    /// The rest of the result of decoding.
    decoded: Decoded<T>,
}

impl<T: DeserializeOwned> Parsed<T> {
    /// Reads `bytes`, the content of the file named `file`, as one `what`. `example` returns an
    /// example of a missing field by the field's name.
    ///
    /// # Errors
    /// Returns the mistakes of a file that can't be read.
    pub fn read(
        file: &str,
        bytes: &[u8],
        what: &str,
        example: fn(&str) -> &'static str,
    ) -> Result<Self, Vec<Problem>> {
        let mut documents = parse(file, bytes).map_err(|problem| vec![problem])?;
        let count = documents.len();
        let (Some(mut node), true) = (documents.pop(), count == 1) else {
            let message = format!("{count} documents; 1 {what}");
            return Err(vec![Problem::of_file(file, message)]);
        };
        let mut decoded = decode::decode::<T>(&mut node, |_, field| example(field));
        let Some(value) = decoded.value.take() else {
            return Err(decoded.into_problems(file));
        };
        Ok(Self {
            file: file.to_owned(),
            node,
            value,
            decoded,
        })
    }

    /// Returns the value, with replacements for mistakes.
    pub fn value(&self) -> &T {
        &self.value
    }

    /// Returns a problem of the field at `path`, such as `types[2].name`.
    pub fn problem(&self, path: &str, message: &str) -> Problem {
        let path = parse_path(path);
        let at = self.node.position(&path);
        Problem::at(&self.file, Some(at), &path.to_string(), message)
    }

    /// Returns the caller's interpretation of the value, or all mistakes in the order of the file.
    /// The error of `interpreted` is a list of mistakes, each the path of a field and a message.
    /// `choices` are the fields whose values decide the meaning of the fields beside them.
    ///
    /// # Errors
    /// Returns the mistakes of reading and of `interpreted`, without those that result from a
    /// replaced value.
    pub fn checked<P>(
        mut self,
        interpreted: Result<P, Vec<(String, String)>>,
        choices: &[&str],
    ) -> Result<P, Vec<Problem>> {
        let (value, found) = match interpreted {
            Ok(value) => (Some(value), Vec::new()),
            Err(found) => (None, found),
        };
        let found = (found.into_iter()).map(|(path, message)| (parse_path(&path), message));
        let follows = |path: &Path, repaired: &Path| follows_from(path, repaired, choices);
        self.decoded.add(&self.node, found, follows);
        match value {
            Some(value) if self.decoded.problems.is_empty() => Ok(value),
            _ => Err(self.decoded.into_problems(&self.file)),
        }
    }
}

/// Reads a path such as `types[2].name`.
fn parse_path(text: &str) -> Path {
    let parts = text.split(['.', '[']).filter(|part| !part.is_empty());
    let segment = |part: &str| match part.strip_suffix(']').and_then(|at| at.parse().ok()) {
        Some(at) => Segment::Item(at),
        None => Segment::Field(part.to_owned()),
    };
    Path::new(parts.map(segment).collect())
}

/// Whether a problem at `path` results from the replaced value of `repaired`. Such a problem is a
/// part of that value, or for a choice, a part of the block around the value.
fn follows_from(path: &Path, repaired: &Path, choices: &[&str]) -> bool {
    let block = match repaired.segments() {
        [block @ .., Segment::Field(name)] if choices.contains(&name.as_str()) => block,
        value => value,
    };
    path.segments().starts_with(block)
}
