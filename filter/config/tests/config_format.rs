//! Checks that filter and operator of different versions accept each other's configuration, as
//! VERSIONING.md promises.
//!
//! `config_format/VERSION.json` is the output of the operator of that minor version. It has a stage
//! for each example policy, and a stage with every field that existed in that version. The files
//! are never edited. Each minor version adds a file.

// The helpers of these tests panic on a failure.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::Path;

use headgate_config::FilterConfig;
use serde_json::Value;

#[test]
fn configurations_of_earlier_versions_are_read_and_written_without_new_fields() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/config_format");
    let mut versions = 0;
    for file in fs::read_dir(folder).unwrap() {
        let file = file.unwrap().path();
        let written = fs::read(&file).unwrap();
        let config = FilterConfig::from_json(&written)
            .unwrap_or_else(|error| panic!("{}: a filter refuses it: {error}", file.display()));
        let old: Value = serde_json::from_slice(&written).unwrap();
        let new = serde_json::to_value(&config).unwrap();
        assert_eq!(
            new,
            old,
            "{}: filters of that version refuse fields that they don't know; leave new ones out at \
             their default (skip_serializing_if)",
            file.display()
        );
        versions += 1;
    }
    assert!(versions > 0);
}
