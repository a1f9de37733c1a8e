//! Paths of fields, such as `spec.types[2].slo.p90`.

use std::fmt;

/// One step of a [`Path`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Segment {
    /// A field of a mapping.
    Field(String),
    /// An item of a list, from 0.
    Item(usize),
}

/// The path of a field in a document.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Path(Vec<Segment>);

impl Path {
    /// Returns the path of these segments.
    pub(crate) fn new(segments: Vec<Segment>) -> Self {
        Self(segments)
    }

    /// Returns this path and, below it, fields separated by dots.
    pub(crate) fn field(&self, fields: &str) -> Self {
        let mut path = self.clone();
        path.0
            .extend(fields.split('.').map(|f| Segment::Field(f.to_owned())));
        path
    }

    /// Returns this path and, below it, a field whose name may hold dots.
    pub(crate) fn key(&self, key: &str) -> Self {
        let mut path = self.clone();
        path.0.push(Segment::Field(key.to_owned()));
        path
    }

    /// Returns this path and, below it, the item `index`.
    pub(crate) fn item(&self, index: usize) -> Self {
        let mut path = self.clone();
        path.0.push(Segment::Item(index));
        path
    }

    pub(crate) fn segments(&self) -> &[Segment] {
        &self.0
    }

    /// Whether this path is `other` or below it.
    pub(crate) fn is_within(&self, other: &Self) -> bool {
        self.0.starts_with(&other.0)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("document");
        }
        for (i, segment) in self.0.iter().enumerate() {
            match segment {
                Segment::Field(key) if i == 0 => f.write_str(key)?,
                Segment::Field(key) => write!(f, ".{key}")?,
                Segment::Item(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}
