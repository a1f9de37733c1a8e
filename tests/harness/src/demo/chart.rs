//! Line charts as SVG, without a library. The report must be one file that needs no network, and
//! the code for it (two scales, ticks, lines with gaps, steps, markers) is smaller than a
//! dependency.
//!
//! Colours come from CSS classes, so one drawing suits light and dark pages.

use std::fmt::Write as _;

/// The mapping of values to the vertical axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Vertical {
    /// A linear axis from zero to this value.
    Linear(f64),
    /// A logarithmic axis between these two values.
    Log(f64, f64),
}

/// A rectangle of an SVG with a time axis and a value axis.
#[derive(Debug, Clone)]
pub struct Panel {
    /// Left edge of the plot, px.
    pub x: f64,
    /// Upper edge, px.
    pub y: f64,
    /// Width of the plot, px.
    pub width: f64,
    /// Height of the plot, px.
    pub height: f64,
    /// Length of the time axis, s.
    pub seconds: f64,
    /// The value axis.
    pub vertical: Vertical,
}

impl Panel {
    /// Returns the horizontal position of a time.
    pub fn at(&self, seconds: f64) -> f64 {
        self.x + self.width * (seconds / self.seconds).clamp(0.0, 1.0)
    }

    /// Returns the vertical position of a value. Values beyond the axis lie on its edge.
    pub fn level(&self, value: f64) -> f64 {
        let share = match self.vertical {
            Vertical::Linear(max) => value / max,
            Vertical::Log(min, max) => (value.max(min) / min).ln() / (max / min).ln(),
        };
        self.y + self.height * (1.0 - share.clamp(0.0, 1.0))
    }

    /// Draws grid lines with labels at the value axis. `label` formats the value of a label.
    pub fn value_axis(&self, out: &mut String, label: impl Fn(f64) -> String) {
        for value in self.value_ticks() {
            let y = self.level(value);
            let _ = write!(
                out,
                r#"<line class="grid" x1="{:.1}" x2="{:.1}" y1="{y:.1}" y2="{y:.1}"/><text class="tick" x="{:.1}" y="{:.1}" text-anchor="end">{}</text>"#,
                self.x,
                self.x + self.width,
                self.x - 6.0,
                y + 3.5,
                label(value)
            );
        }
    }

    /// Draws the time axis with a label every `step` seconds.
    pub fn time_axis(&self, out: &mut String, step: f64) {
        let bottom = self.y + self.height;
        let _ = write!(
            out,
            r#"<line class="axis" x1="{:.1}" x2="{:.1}" y1="{bottom:.1}" y2="{bottom:.1}"/>"#,
            self.x,
            self.x + self.width
        );
        let mut t = 0.0;
        while t <= self.seconds + 1e-9 {
            let _ = write!(
                out,
                r#"<text class="tick" x="{:.1}" y="{:.1}" text-anchor="middle">{t:.0} s</text>"#,
                self.at(t),
                bottom + 14.0
            );
            t += step;
        }
    }

    /// Draws a line through `points` (s, value), broken where a value is missing.
    pub fn line(
        &self,
        out: &mut String,
        class: &str,
        points: impl IntoIterator<Item = (f64, Option<f64>)>,
    ) {
        let mut path = String::new();
        let mut pen_down = false;
        for (t, value) in points {
            let Some(value) = value else {
                pen_down = false;
                continue;
            };
            let command = if pen_down { 'L' } else { 'M' };
            let _ = write!(path, "{command}{:.1} {:.1}", self.at(t), self.level(value));
            if !pen_down {
                // A single point between two gaps is visible as a dot, because of round caps.
                path.push_str("h0");
            }
            pen_down = true;
        }
        if !path.is_empty() {
            let _ = write!(out, r#"<path class="line {class}" d="{path}"/>"#);
        }
    }

    /// Draws the area between the base and `points` (s, value).
    pub fn area(&self, out: &mut String, class: &str, points: &[(f64, f64)]) {
        let (Some(first), Some(last)) = (points.first(), points.last()) else {
            return;
        };
        let base = self.y + self.height;
        let mut path = format!("M{:.1} {base:.1}", self.at(first.0));
        for &(t, value) in points {
            let _ = write!(path, "L{:.1} {:.1}", self.at(t), self.level(value));
        }
        let _ = write!(path, "L{:.1} {base:.1}Z", self.at(last.0));
        let _ = write!(out, r#"<path class="area {class}" d="{path}"/>"#);
    }

    /// Draws a horizontal line at `value` between two times, such as an objective or a capacity.
    pub fn level_line(&self, out: &mut String, class: &str, value: f64, from: f64, to: f64) {
        let y = self.level(value);
        let _ = write!(
            out,
            r#"<line class="{class}" x1="{:.1}" x2="{:.1}" y1="{y:.1}" y2="{y:.1}"/>"#,
            self.at(from),
            self.at(to)
        );
    }

    /// Draws a vertical line at a time. Its top has a label, unless `label` is empty.
    pub fn event(&self, out: &mut String, at_s: f64, label: &str) {
        let x = self.at(at_s);
        let _ = write!(
            out,
            r#"<line class="event" x1="{x:.1}" x2="{x:.1}" y1="{:.1}" y2="{:.1}"/>"#,
            self.y,
            self.y + self.height
        );
        if !label.is_empty() {
            let y = self.y - 5.0;
            let _ = write!(
                out,
                r#"<text class="tick" x="{x:.1}" y="{y:.1}" text-anchor="middle">{}</text>"#,
                escape(label)
            );
        }
    }

    fn value_ticks(&self) -> Vec<f64> {
        match self.vertical {
            Vertical::Linear(max) => {
                let step = nice_step(max / 4.0);
                (0..)
                    .map(|i| f64::from(i) * step)
                    .take_while(|&v| v <= max * 1.001)
                    .collect()
            }
            Vertical::Log(min, max) => {
                let decades = min.log10().ceil() as i32..=max.log10().floor() as i32;
                decades.map(|exponent| 10f64.powi(exponent)).collect()
            }
        }
    }
}

/// Returns the round number (1, 2 or 5 times a power of ten) at or above `step`.
pub fn nice_step(step: f64) -> f64 {
    let power = 10f64.powf(step.max(f64::MIN_POSITIVE).log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .find(|factor| factor * power >= step * 0.999);
    factor.unwrap_or(10.0) * power
}

/// Escapes text for HTML and SVG.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// Formats a duration in ms for human readers.
pub fn say_ms(ms: f64) -> String {
    match ms {
        ms if ms >= 10_000.0 => format!("{:.0} s", ms / 1e3),
        ms if ms >= 1_000.0 => format!("{:.1} s", ms / 1e3).replace(".0 s", " s"),
        ms if ms >= 10.0 => format!("{ms:.0} ms"),
        ms => format!("{ms:.1} ms").replace(".0 ms", " ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel(vertical: Vertical) -> Panel {
        Panel {
            x: 10.0,
            y: 20.0,
            width: 100.0,
            height: 50.0,
            seconds: 10.0,
            vertical,
        }
    }

    #[test]
    fn scales_map_the_ends_of_the_axes_to_the_edges() {
        let linear = panel(Vertical::Linear(200.0));
        assert_eq!(
            (linear.level(0.0), linear.level(200.0), linear.level(900.0)),
            (70.0, 20.0, 20.0)
        );
        let log = panel(Vertical::Log(1.0, 100.0));
        assert!((log.level(10.0) - 45.0).abs() < 1e-9);
        assert_eq!(log.level(0.0), 70.0);
        assert_eq!((log.at(0.0), log.at(10.0)), (10.0, 110.0));
    }

    #[test]
    fn a_missing_value_breaks_the_line() {
        let mut out = String::new();
        panel(Vertical::Linear(1.0)).line(
            &mut out,
            "c",
            [(0.0, Some(0.0)), (1.0, None), (2.0, Some(1.0))],
        );
        assert_eq!(out.matches('M').count(), 2);
        assert_eq!(out.matches('L').count(), 0);
    }

    #[test]
    fn steps_are_round() {
        for (step, nice) in [
            (0.9, 1.0),
            (1.0, 1.0),
            (1.1, 2.0),
            (34.0, 50.0),
            (70.0, 100.0),
        ] {
            assert!((nice_step(step) - nice).abs() < 1e-9, "{step}");
        }
    }

    #[test]
    fn durations_read_naturally() {
        let said: Vec<_> = [0.4, 7.0, 72.0, 1_000.0, 2_710.0, 12_400.0]
            .map(say_ms)
            .to_vec();
        assert_eq!(said, ["0.4 ms", "7 ms", "72 ms", "1 s", "2.7 s", "12 s"]);
    }
}
