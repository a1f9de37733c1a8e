//! Checks that the pictures in pages are legible without magnification, on light and on dark pages.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use regex_lite::Regex;

use super::{markdown, shown};
use crate::dashboard::picture::OF_PAGE;

/// The least allowed size of text, px.
const LEAST: f64 = 12.0;

/// Returns the SVGs that pages show.
fn pictures() -> BTreeSet<PathBuf> {
    let link = Regex::new(r"!\[[^\]]*\]\(([^)]*\.svg)\)").unwrap();
    let mut found = BTreeSet::new();
    for page in markdown().unwrap() {
        let text = fs::read_to_string(&page).unwrap();
        let folder = page.parent().unwrap();
        let paths = link.captures_iter(&text).map(|c| folder.join(&c[1]));
        found.extend(paths.map(|path| path.canonicalize().unwrap()));
    }
    found
}

#[test]
fn pictures_have_two_themes_and_no_small_text() {
    let size = Regex::new(r#"font-size(?::|=")([0-9.]+)"#).unwrap();
    let width = Regex::new(r#"viewBox="0 0 ([0-9.]+) "#).unwrap();
    let pictures = pictures();
    assert!(pictures.len() >= 6, "{pictures:?}");
    for picture in pictures {
        let name = shown(&picture);
        let text = fs::read_to_string(&picture).unwrap();
        assert!(text.contains("prefers-color-scheme:dark"), "{name}");
        let sizes: Vec<f64> = size
            .captures_iter(&text)
            .map(|c| c[1].parse().unwrap())
            .collect();
        assert!(!sizes.is_empty(), "{name}");
        assert!(sizes.iter().all(|px| *px >= LEAST), "{name}: {sizes:?}");
        // A page scales down a wider picture together with its text.
        let width: f64 = width.captures(&text).unwrap()[1].parse().unwrap();
        assert!(width <= OF_PAGE, "{name}: {width} px");
    }
}
