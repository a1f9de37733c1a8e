//! YAML as a tree of values with their lines and columns.
//!
//! Deserializing directly into the API's types would stop at the first mistake, and would lose the
//! positions of fields with invalid values. So a file is first parsed into this tree. Decoding
//! ([`super::decode`]) and rules ([`super::rules`]) identify fields by path, and the tree returns
//! the position of a path.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Error as YamlError, NonFiniteFloatPolicy, Spanned};

use super::path::{Path, Segment};
use super::problem::{Position, Problem};

/// A value and its position.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    pub(crate) at: Position,
    pub(crate) value: Value,
}

/// The number of characters of a text that a message shows. A file that isn't YAML is one text.
const SHOWN: usize = 80;

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<Member>),
    /// A missing or unusable value, which decodes as any type.
    Anything,
}

/// A field of a mapping.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Member {
    pub(crate) key: String,
    /// The position of the key.
    pub(crate) at: Position,
    pub(crate) node: Node,
}

/// Parses all documents of `text`, the content of `file`. Empty documents are left out.
pub(crate) fn parse(file: &str, text: &str) -> Result<Vec<Node>, Problem> {
    let options = serde_saphyr::options! {
        // `no` and `on` are strings, as in YAML 1.2.
        strict_booleans: true,
        // The rules handle `.nan`.
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
    };
    let documents: Vec<Spanned<Value>> = serde_saphyr::from_multiple_with_options(text, options)
        .map_err(|e| syntax_error(file, &e))?;
    Ok(documents
        .into_iter()
        .map(Node::from)
        .filter(|d| d.value != Value::Null)
        .collect())
}

impl From<Spanned<Value>> for Node {
    fn from(spanned: Spanned<Value>) -> Self {
        Self {
            at: Position::of(spanned.referenced),
            value: spanned.value,
        }
    }
}

impl Node {
    /// Returns the field `key` of a mapping.
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|e| e.key == key).map(|e| &e.node),
            _ => None,
        }
    }

    /// Returns the text, if the value is a text.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the item `index` of a list.
    pub(crate) fn item(&self, index: usize) -> Option<&Self> {
        match &self.value {
            Value::List(items) => items.get(index),
            _ => None,
        }
    }

    /// Returns the value at `path`.
    pub(crate) fn find_mut(&mut self, path: &[Segment]) -> Option<&mut Self> {
        path.iter()
            .try_fold(self, |node, segment| match (&mut node.value, segment) {
                (Value::Map(entries), Segment::Field(key)) => entries
                    .iter_mut()
                    .find(|e| e.key == *key)
                    .map(|e| &mut e.node),
                (Value::List(items), Segment::Item(index)) => items.get_mut(*index),
                _ => None,
            })
    }

    /// Returns the position of the field at `path`: the position of the field's key, or for an item
    /// of a list, of the item's first character. For a missing field, returns the position of the
    /// innermost existing field around it.
    pub(crate) fn position(&self, path: &Path) -> Position {
        let mut node = self;
        let mut at = self.at;
        for segment in path.segments() {
            match (&node.value, segment) {
                (Value::Map(entries), Segment::Field(key)) => {
                    let Some(entry) = entries.iter().find(|e| e.key == *key) else {
                        break;
                    };
                    (node, at) = (&entry.node, entry.at);
                }
                (Value::List(items), Segment::Item(index)) => {
                    let Some(item) = items.get(*index) else { break };
                    (node, at) = (item, item.at);
                }
                _ => break,
            }
        }
        at
    }

    /// Describes the value in few words, for messages.
    pub(crate) fn describe(&self) -> String {
        match &self.value {
            Value::Null | Value::Anything => "null".to_owned(),
            Value::Bool(b) => b.to_string(),
            Value::Int(n) => n.to_string(),
            Value::Float(n) => n.to_string(),
            Value::Text(text) => match text.char_indices().nth(SHOWN) {
                Some((end, _)) => format!("{:?}…", &text[..end]),
                None => format!("{text:?}"),
            },
            Value::List(items) if items.is_empty() => "an empty list".to_owned(),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a mapping".to_owned(),
        }
    }
}

/// Returns the reason why a text isn't YAML.
fn syntax_error(file: &str, error: &YamlError) -> Problem {
    let error = error.without_snippet();
    let at = error.location().map(Position::of).filter(|at| at.line > 0);
    let mut field = String::new();
    let message = match error {
        YamlError::DuplicateMappingKey { key: Some(key), .. } => {
            field.clone_from(key);
            "given twice in one mapping; keep one".to_owned()
        }
        YamlError::ExternalMessage { msg, .. } | YamlError::Message { msg, .. } => {
            format!("not valid YAML: {}{}", one_line(msg), advice(msg))
        }
        YamlError::UnknownAnchor { .. } => {
            "not valid YAML: no such anchor; define it with & or write the value".to_owned()
        }
        YamlError::Eof { .. } => "not valid YAML: it ends too early; is the file whole?".to_owned(),
        other => format!("not usable YAML: {}", one_line(&other.to_string())),
    };
    Problem::at(file, at, &field, &message)
}

/// Returns advice for a message of the parser.
fn advice(message: &str) -> &'static str {
    if message.contains("tab") {
        "; indent with spaces"
    } else if message.contains("indentation") || message.contains("block mapping") {
        "; check the indentation and the quotes"
    } else {
        ""
    }
}

fn one_line(text: &str) -> String {
    text.lines()
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnyValue;

        impl<'de> Visitor<'de> for AnyValue {
            type Value = Value;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_unit<E>(self) -> Result<Value, E> {
                Ok(Value::Null)
            }

            fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
                Ok(Value::Bool(value))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
                Ok(Value::Int(value.into()))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
                Ok(Value::Int(value.into()))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
                Ok(Value::Float(value))
            }

            fn visit_str<E>(self, value: &str) -> Result<Value, E> {
                Ok(Value::Text(value.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element::<Spanned<Value>>()? {
                    items.push(item.into());
                }
                Ok(Value::List(items))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
                let mut entries = Vec::new();
                while let Some((key, node)) = map.next_entry::<Spanned<String>, Spanned<Value>>()? {
                    let at = Position::of(key.referenced);
                    entries.push(Member {
                        key: key.value,
                        at,
                        node: node.into(),
                    });
                }
                Ok(Value::Map(entries))
            }
        }

        deserializer.deserialize_any(AnyValue)
    }
}
