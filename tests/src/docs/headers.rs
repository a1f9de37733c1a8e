//! Checks the page of headers. It must name exactly the headers of Headgate that are in the
//! sources.

use std::collections::BTreeSet;
use std::fs;

use regex_lite::Regex;

use super::{files, folder, shown};

/// Headers that aren't part of the traffic of proxies: that of the command line's token for
/// operators, and that on which test modules trap.
const INTERNAL: [&str; 2] = ["x-headgate-token", "x-headgate-trap"];

fn names(text: &str, found: &mut BTreeSet<String>) {
    let name = Regex::new("x-headgate-[a-z]+(?:-[a-z]+)*").unwrap();
    found.extend(name.find_iter(text).map(|name| name.as_str().to_owned()));
}

#[test]
fn the_page_has_every_header_of_the_sources() {
    let is_source = |path: &str| {
        ["filter/", "operator/"]
            .iter()
            .any(|part| path.starts_with(part) && path.contains("/src/"))
    };
    let mut sources = BTreeSet::new();
    for file in files("rs").unwrap() {
        if is_source(&shown(&file)) {
            names(&fs::read_to_string(file).unwrap(), &mut sources);
        }
    }
    for name in INTERNAL {
        assert!(sources.remove(name), "{name} is in no source");
    }
    let mut page = BTreeSet::new();
    let text = fs::read_to_string(folder().join("reference/headers.md")).unwrap();
    names(&text, &mut page);
    assert_eq!(page, sources);
}
