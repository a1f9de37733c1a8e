//! Labels from arguments and from files of the downward API.

use std::collections::BTreeMap;

/// Parses `KEY=VALUE`.
pub(super) fn parse(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write KEY=VALUE, such as app=search".to_owned()),
    }
}

/// Parses one label per line, `key="value"`, as the downward API writes `metadata.labels`. Values
/// are quoted as in Go. For valid labels, this format equals JSON.
pub(super) fn read(text: &str) -> Result<BTreeMap<String, String>, String> {
    let mut labels = BTreeMap::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let label = line.split_once('=').and_then(|(key, value)| {
            let value: String = serde_json::from_str(value.trim()).ok()?;
            (!key.is_empty()).then(|| (key.to_owned(), value))
        });
        let (key, value) = label.ok_or_else(|| {
            format!(
                "line {}: {line:?} is no label; the downward API writes key=\"value\" (fieldPath: \
                 metadata.labels)",
                number + 1
            )
        })?;
        labels.insert(key, value);
    }
    Ok(labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_downward_apis_format_is_read() {
        let read = read("app=\"search\"\npod-template-hash=\"6b7\"\nempty=\"\"").unwrap();
        let pairs: Vec<_> = read.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(
            pairs,
            [
                ("app", "search"),
                ("empty", ""),
                ("pod-template-hash", "6b7")
            ]
        );
        for wrong in ["app", "app=search", "=\"x\"", "a=\"b\"\napp: search"] {
            assert!(
                super::read(wrong).unwrap_err().contains("is no label"),
                "{wrong}"
            );
        }
    }

    #[test]
    fn arguments_are_pairs() {
        assert_eq!(parse("app=a=b").unwrap(), ("app".into(), "a=b".into()));
        assert!(parse("=x").is_err() && parse("app").is_err());
    }
}
