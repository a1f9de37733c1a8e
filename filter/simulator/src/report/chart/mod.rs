//! Figures as SVG, drawn without a library. A page must be one file without network access or
//! scripts. The code for drawing (two scales, ticks, lines with gaps, steps, dots, a legend) is
//! smaller than a dependency.
//!
//! Colours come from CSS ([`theme`]), so one drawing fits light and dark pages.

mod legend;
mod scale;
pub mod theme;

use std::fmt::Write as _;

use super::{Figure, Level, Series, Style};
use scale::Ruler;

const WIDTH: f64 = 640.0;
const PLOT_HEIGHT: f64 = 280.0;
/// The space for the vertical axis's numbers and label.
const LEFT: f64 = 64.0;
const RIGHT: f64 = 18.0;
/// The space for the horizontal axis's numbers and label.
const BOTTOM: f64 = 46.0;
/// The space for the names of vertical reference lines.
const TOP: f64 = 20.0;
/// The margin around the plot into which curves may extend.
const EDGE: f64 = 5.0;
/// The largest number of points of a line that has a dot at each point.
const MOST_DOTS: usize = 32;
/// The approximate width of a character of the small text, px.
const CHARACTER: f64 = 6.3;

/// Returns the figure as an SVG element for a page with the rules of [`theme::CSS`].
pub fn svg(figure: &Figure) -> String {
    let mut body = String::new();
    let legend = legend::draw(&mut body, figure, LEFT, WIDTH - RIGHT);
    let plot = Plot::new(figure, legend + TOP);
    plot.axes(&mut body);
    let levels = || {
        figure
            .levels
            .iter()
            .filter(|level| !plot.y.is_beyond(level.at))
    };
    for level in levels() {
        plot.level(&mut body, level);
    }
    for event in figure
        .events
        .iter()
        .filter(|event| !plot.x.is_beyond(event.at))
    {
        plot.event(&mut body, event);
    }
    plot.all_series(&mut body);
    // Names are drawn above the curves.
    for level in levels() {
        plot.level_name(&mut body, level);
    }
    let height = legend + TOP + PLOT_HEIGHT + BOTTOM;
    format!(
        r#"<svg viewBox="0 0 {WIDTH} {height:.0}" role="img" aria-label="{}">{body}</svg>"#,
        escape(&summary(figure))
    )
}

/// Returns a textual summary of the figure, for screen readers.
fn summary(figure: &Figure) -> String {
    let names: Vec<&str> = figure.series.iter().map(|s| s.name.as_str()).collect();
    format!(
        "{}: {} over {} for {}",
        figure.title,
        figure.y.label,
        figure.x.label,
        names.join(", ")
    )
}

/// Returns the index of the colour of the series at index `at`.
fn colour(at: usize, series: &Series) -> usize {
    series.colour.unwrap_or(at) % theme::COLOURS
}

/// Escapes text for HTML and SVG.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// A rectangle with two axes.
struct Plot<'a> {
    figure: &'a Figure,
    x: Ruler,
    y: Ruler,
}

impl<'a> Plot<'a> {
    fn new(figure: &'a Figure, top: f64) -> Self {
        let points = || figure.series.iter().flat_map(|series| &series.points);
        let xs = points().filter_map(|(x, y)| y.map(|_| *x));
        let xs = xs.chain(figure.events.iter().map(|event| event.at));
        let ys = points().filter_map(|(_, y)| *y);
        let ys = ys.chain(figure.levels.iter().map(|level| level.at));
        Self {
            figure,
            x: Ruler::horizontal(&figure.x, xs, LEFT, WIDTH - RIGHT),
            y: Ruler::vertical(&figure.y, ys, top + PLOT_HEIGHT, top),
        }
    }

    fn axes(&self, out: &mut String) {
        let (left, right) = self.x.ends();
        let (bottom, top) = self.y.ends();
        // Writing to a String does not fail.
        for (value, label) in self.y.ticks() {
            let y = self.y.at(value);
            let _ = write!(
                out,
                r#"<line class="grid" x1="{left:.1}" x2="{right:.1}" y1="{y:.1}" y2="{y:.1}"/><text class="tick" x="{:.1}" y="{:.1}" text-anchor="end">{label}</text>"#,
                left - 7.0,
                y + 3.8
            );
        }
        for (value, label) in self.x.ticks() {
            let x = self.x.at(value);
            let _ = write!(
                out,
                r#"<line class="axis" x1="{x:.1}" x2="{x:.1}" y1="{bottom:.1}" y2="{:.1}"/><text class="tick" x="{x:.1}" y="{:.1}" text-anchor="middle">{label}</text>"#,
                bottom + 4.0,
                bottom + 17.0
            );
        }
        let middle = f64::midpoint(top, bottom);
        let _ = write!(
            out,
            r#"<line class="axis" x1="{left:.1}" x2="{right:.1}" y1="{bottom:.1}" y2="{bottom:.1}"/><text class="name" x="{:.1}" y="{:.1}" text-anchor="middle">{}</text><text class="name" transform="translate(14 {middle:.1}) rotate(-90)" text-anchor="middle">{}</text>"#,
            f64::midpoint(left, right),
            bottom + 37.0,
            escape(&self.figure.x.label),
            escape(&self.figure.y.label)
        );
    }

    /// Draws the series in a nested SVG element, which clips everything beyond the axes.
    fn all_series(&self, out: &mut String) {
        let (left, right) = self.x.ends();
        let (bottom, top) = self.y.ends();
        // With the margin, dots on the edge aren't clipped.
        let (x, y) = (left - EDGE, top - EDGE);
        let (width, height) = (right - left + 2.0 * EDGE, bottom - top + 2.0 * EDGE);
        let _ = write!(
            out,
            r#"<svg x="{x}" y="{y}" width="{width}" height="{height}" viewBox="{x} {y} {width} {height}">"#
        );
        for (at, series) in self.figure.series.iter().enumerate() {
            self.series(out, series, colour(at, series));
        }
        out.push_str("</svg>");
    }

    fn level(&self, out: &mut String, level: &Level) {
        let (left, right) = self.x.ends();
        let y = self.y.at(level.at);
        let _ = write!(
            out,
            r#"<line class="level" x1="{left:.1}" x2="{right:.1}" y1="{y:.1}" y2="{y:.1}"/>"#
        );
    }

    fn level_name(&self, out: &mut String, level: &Level) {
        if level.label.is_empty() {
            return;
        }
        let (_, right) = self.x.ends();
        let _ = write!(
            out,
            r#"<text class="tick halo" x="{:.1}" y="{:.1}" text-anchor="end">{} {}</text>"#,
            right - 4.0,
            self.y.at(level.at) - 5.0,
            escape(&level.label),
            scale::short(level.at)
        );
    }

    fn event(&self, out: &mut String, event: &Level) {
        let (bottom, top) = self.y.ends();
        let x = self.x.at(event.at);
        let _ = write!(
            out,
            r#"<line class="event" x1="{x:.1}" x2="{x:.1}" y1="{:.1}" y2="{bottom:.1}"/>"#,
            top - 4.0
        );
        if !event.label.is_empty() {
            // Without this limit, a name at the right edge would be clipped.
            let width = event.label.chars().count() as f64 * CHARACTER;
            let centre = x.min(WIDTH - width / 2.0);
            let _ = write!(
                out,
                r#"<text class="tick" x="{centre:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
                top - 8.0,
                escape(&event.label)
            );
        }
    }

    fn series(&self, out: &mut String, series: &Series, colour: usize) {
        let runs = self.runs(series);
        match series.style {
            Style::Line | Style::Dashed => {
                let path = path(&runs);
                let dashed = match series.style {
                    Style::Dashed => " dashed",
                    _ => "",
                };
                let _ = write!(out, r#"<path class="line c{colour}{dashed}" d="{path}"/>"#);
                if series.points.len() <= MOST_DOTS {
                    self.dots(out, series, "dot", colour, 2.8);
                }
            }
            Style::Paper => self.dots(out, series, "hollow", colour, 4.0),
        }
    }

    /// Returns the positions of the points, in runs without a gap.
    fn runs(&self, series: &Series) -> Vec<Vec<(f64, f64)>> {
        let mut runs = vec![Vec::new()];
        for point in &series.points {
            match (self.place(*point), runs.last_mut()) {
                (Some(place), Some(run)) => run.push(place),
                _ => runs.push(Vec::new()),
            }
        }
        runs.retain(|run| !run.is_empty());
        runs
    }

    fn place(&self, (x, y): (f64, Option<f64>)) -> Option<(f64, f64)> {
        let y = y.filter(|y| self.y.holds(*y))?;
        self.x.holds(x).then(|| (self.x.at(x), self.y.at(y)))
    }

    fn dots(&self, out: &mut String, series: &Series, class: &str, colour: usize, radius: f64) {
        for &(at, value) in &series.points {
            let (Some((x, y)), Some(value)) = (self.place((at, value)), value) else {
                continue;
            };
            let _ = write!(
                out,
                r#"<circle class="{class} c{colour}" cx="{x:.1}" cy="{y:.1}" r="{radius}"><title>{}: {} at {}</title></circle>"#,
                escape(&series.name),
                scale::short(value),
                scale::short(at)
            );
        }
    }
}

fn path(runs: &[Vec<(f64, f64)>]) -> String {
    let mut path = String::new();
    for run in runs {
        for (i, (x, y)) in run.iter().enumerate() {
            let _ = match i {
                // Round caps draw a single point between two gaps as a dot.
                0 => write!(path, "M{x:.1} {y:.1}h0"),
                _ => write!(path, "L{x:.1} {y:.1}"),
            };
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Axis, Scale};

    fn figure() -> Figure {
        Figure {
            title: "Rejections".into(),
            x: Axis::new("load"),
            y: Axis::new("rejected, %"),
            series: vec![
                Series::new(
                    "a <b>",
                    Style::Line,
                    [
                        (1.0, Some(0.0)),
                        (2.0, None),
                        (3.0, Some(50.0)),
                        (4.0, Some(10.0)),
                    ],
                ),
                Series::new("the paper", Style::Paper, [(1.0, Some(5.0))]).coloured(0),
            ],
            levels: vec![Level::new(18.0, "objective")],
            events: vec![Level::new(2.0, "burst")],
            caption: String::new(),
        }
    }

    #[test]
    fn a_drawing_has_its_curves_dots_lines_and_names() {
        let svg = svg(&figure());
        assert!(svg.contains(r#"class="line c0""#));
        let path = svg
            .split(" d=\"")
            .nth(2)
            .and_then(|d| d.split('"').next())
            .unwrap();
        assert_eq!(
            (path.matches('M').count(), path.matches('L').count()),
            (2, 1)
        );
        assert_eq!(svg.matches(r#"class="dot c0" cx"#).count(), 3);
        assert_eq!(
            svg.matches(r#"class="hollow c0" cx"#).count(),
            2,
            "one in the legend"
        );
        assert!(svg.contains("objective 18") && svg.contains(">burst<"));
        assert!(svg.contains("a &lt;b&gt;") && !svg.contains("a <b>"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn an_empty_figure_is_drawn() {
        let mut empty = Figure::default();
        assert!(!svg(&empty).contains("NaN"));
        empty.series = vec![Series::new("one", Style::Line, [(1.0, Some(f64::NAN))])];
        empty.y.scale = Scale::Log;
        assert!(!svg(&empty).contains("NaN"));
        empty.series = vec![Series::new(
            "one",
            Style::Line,
            [(0.0, Some(0.0)), (1.0, Some(-1.0))],
        )];
        assert!(!svg(&empty).contains("NaN"));
    }
}
