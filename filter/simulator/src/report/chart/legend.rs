//! The names of series above the plot, in as many lines as needed.

use std::fmt::Write as _;

use super::{CHARACTER, colour, escape};
use crate::report::{Figure, Style};

const LINE: f64 = 18.0;
/// The width of the sample before a name, including the gap.
const SAMPLE: f64 = 30.0;
/// The distance to the next name.
const GAP: f64 = 16.0;

/// Draws the legend and returns its height. A single named series needs no legend.
pub(super) fn draw(out: &mut String, figure: &Figure, left: f64, right: f64) -> f64 {
    let named: Vec<_> = figure
        .series
        .iter()
        .enumerate()
        .filter(|(_, s)| !s.name.is_empty())
        .collect();
    if named.len() < 2 {
        return 0.0;
    }
    let (mut x, mut y) = (left, LINE * 0.7);
    for (at, series) in named {
        let width = SAMPLE + series.name.chars().count() as f64 * CHARACTER;
        if x + width > right && x > left {
            (x, y) = (left, y + LINE);
        }
        sample(out, series.style, colour(at, series), x, y);
        // Writing to a String does not fail.
        let _ = write!(
            out,
            r#"<text class="tick" x="{:.1}" y="{:.1}">{}</text>"#,
            x + SAMPLE - 5.0,
            y + 3.8,
            escape(&series.name)
        );
        x += width + GAP;
    }
    y + LINE * 0.5
}

fn sample(out: &mut String, style: Style, colour: usize, x: f64, y: f64) {
    let middle = x + 10.0;
    let _ = match style {
        Style::Line => write!(
            out,
            r#"<path class="line c{colour}" d="M{x:.1} {y:.1}h20"/>"#
        ),
        Style::Dashed => write!(
            out,
            r#"<path class="line c{colour} dashed" d="M{x:.1} {y:.1}h20"/>"#
        ),
        Style::Paper => write!(
            out,
            r#"<circle class="hollow c{colour}" cx="{middle:.1}" cy="{y:.1}" r="4"/>"#
        ),
    };
}
