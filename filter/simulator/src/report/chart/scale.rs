//! The mapping from values to pixels, and the positions of ticks.

use crate::report::{Axis, Scale};

/// The approximate number of ticks of a linear axis. A horizontal axis needs more room for each
/// number than a vertical axis.
const HORIZONTAL_TICKS: f64 = 8.0;
const VERTICAL_TICKS: f64 = 5.0;
/// The distance beyond the ends of an axis up to which values are mapped, in lengths of the axis.
const FAR: f64 = 20.0;

/// An axis with its position.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ruler {
    scale: Scale,
    from: f64,
    to: f64,
    begin_px: f64,
    end_px: f64,
    ticks: f64,
}

impl Ruler {
    /// Returns an axis from the smallest value to the largest. The ends of `axis` take precedence.
    pub(super) fn horizontal(
        axis: &Axis,
        values: impl Iterator<Item = f64>,
        begin_px: f64,
        end_px: f64,
    ) -> Self {
        let (low, high) = span(axis.scale, values);
        Self {
            scale: axis.scale,
            from: axis.from.unwrap_or(low),
            to: axis.to.unwrap_or(high),
            begin_px,
            end_px,
            ticks: HORIZONTAL_TICKS,
        }
        .mended()
    }

    /// Returns an axis that ends at a round number at or above all values. A linear axis begins at
    /// 0, or at the smallest value if this value is negative. A logarithmic axis begins at a power
    /// of ten. The ends of `axis` take precedence.
    pub(super) fn vertical(
        axis: &Axis,
        values: impl Iterator<Item = f64>,
        begin_px: f64,
        end_px: f64,
    ) -> Self {
        let (low, high) = span(axis.scale, values);
        let (from, to) = match axis.scale {
            Scale::Log => (log_round(low, f64::floor), log_round(high, f64::ceil)),
            Scale::Linear => {
                let from = axis.from.unwrap_or(low.min(0.0));
                let step = nice_step((high - from) / VERTICAL_TICKS);
                (from, from + ((high - from) / step).ceil() * step)
            }
        };
        Self {
            scale: axis.scale,
            from: axis.from.unwrap_or(from),
            to: axis.to.unwrap_or(to),
            begin_px,
            end_px,
            ticks: VERTICAL_TICKS,
        }
        .mended()
    }

    /// Returns the axis. A range that is empty, or that the scale can't show, is replaced by a
    /// valid range.
    fn mended(mut self) -> Self {
        let sound = self.from.is_finite() && self.to.is_finite();
        let sound = sound && (self.scale == Scale::Linear || self.from > 0.0);
        if !sound {
            (self.from, self.to) = match self.scale {
                Scale::Linear => (0.0, 1.0),
                Scale::Log => (1.0, 10.0),
            };
        } else if self.to <= self.from {
            self.to = match self.scale {
                Scale::Linear => self.from + self.from.abs().max(1.0),
                Scale::Log => self.from * 10.0,
            };
        }
        self
    }

    /// Returns the first and the last pixel.
    pub(super) fn ends(&self) -> (f64, f64) {
        (self.begin_px, self.end_px)
    }

    /// Whether a value is beyond the ends.
    pub(super) fn is_beyond(&self, value: f64) -> bool {
        value > self.to * (1.0 + 1e-9) || value < self.from * (1.0 - 1e-9)
    }

    /// Whether the axis can map a value. The position may be beyond the ends.
    pub(super) fn holds(&self, value: f64) -> bool {
        value.is_finite() && (self.scale == Scale::Linear || value > 0.0)
    }

    /// Returns the position of a value, px. A value beyond the ends has a position beyond the ends.
    pub(super) fn at(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear => (value - self.from) / (self.to - self.from),
            Scale::Log => (value / self.from).ln() / (self.to / self.from).ln(),
        };
        self.begin_px + (self.end_px - self.begin_px) * share.clamp(-FAR, FAR)
    }

    /// Returns the values with a tick, and their labels.
    pub(super) fn ticks(&self) -> Vec<(f64, String)> {
        match self.scale {
            Scale::Linear => {
                let step = nice_step((self.to - self.from) / self.ticks);
                let decimals = (-step.log10().floor()).max(0.0) as usize;
                let first = (self.from / step - 1e-6).ceil() as i64;
                let values = (first..).map(|i| i as f64 * step);
                let values = values.take_while(|v| *v <= self.to + step * 1e-6);
                values
                    .map(|v| (v, format!("{:.decimals$}", v + 0.0)))
                    .collect()
            }
            Scale::Log => {
                let decades = self.from.log10().floor() as i32..=self.to.log10().ceil() as i32;
                // With few decades, there is room for values between the powers of ten.
                let within: &[f64] = match decades.clone().count() {
                    ..=4 => &[1.0, 2.0, 5.0],
                    _ => &[1.0],
                };
                let all = decades.flat_map(|e| within.iter().map(move |f| f * 10f64.powi(e)));
                let shown = |v: &f64| (self.from * 0.999..=self.to * 1.001).contains(v);
                all.filter(shown).map(|v| (v, short(v))).collect()
            }
        }
    }
}

/// Returns the smallest and the largest of the values that can be drawn.
fn span(scale: Scale, values: impl Iterator<Item = f64>) -> (f64, f64) {
    let drawn = values.filter(|v| v.is_finite() && (scale == Scale::Linear || *v > 0.0));
    drawn.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| {
        (low.min(v), high.max(v))
    })
}

/// Returns the power of ten that is next to `value` in the direction of `round`.
fn log_round(value: f64, round: fn(f64) -> f64) -> f64 {
    10f64.powf(round(value.log10()))
}

/// Returns the round number (1, 2 or 5 times a power of ten) at or above `step`.
pub(super) fn nice_step(step: f64) -> f64 {
    if !step.is_finite() || step <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powf(step.log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0];
    let factor = factors.into_iter().find(|f| f * power >= step * 0.999);
    factor.unwrap_or(10.0) * power
}

/// Formats a number with three significant digits.
pub(super) fn short(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude == 0.0 {
        return "0".to_owned();
    }
    let decimals = (2.0 - magnitude.log10().floor()).clamp(0.0, 6.0) as usize;
    let text = format!("{value:.decimals$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(ruler: &Ruler) -> Vec<String> {
        ruler.ticks().into_iter().map(|(_, label)| label).collect()
    }

    #[test]
    fn values_map_to_places() {
        let axis = Axis::new("y").between(0.0, 200.0);
        let linear = Ruler::vertical(&axis, [].into_iter(), 70.0, 20.0);
        assert_eq!(
            [0.0, 100.0, 200.0, 900.0].map(|v| linear.at(v)),
            [70.0, 45.0, 20.0, -155.0]
        );
        assert!(linear.is_beyond(201.0) && !linear.is_beyond(200.0));
        let log = Ruler::vertical(&Axis::new("y").log(), [2.0, 70.0].into_iter(), 0.0, 100.0);
        assert_eq!((log.from, log.to), (1.0, 100.0));
        assert!((log.at(10.0) - 50.0).abs() < 1e-9);
        assert_eq!(log.at(1.0), 0.0);
        assert!(!log.holds(0.0) && log.holds(0.01) && linear.holds(0.0));
    }

    #[test]
    fn ticks_are_round_and_have_as_many_decimals_as_they_need() {
        let of = |from, to| {
            let axis = Axis::new("x").between(from, to);
            labels(&Ruler::horizontal(&axis, [].into_iter(), 0.0, 1.0))
        };
        assert_eq!(
            of(0.9, 1.5),
            ["0.9", "1.0", "1.1", "1.2", "1.3", "1.4", "1.5"]
        );
        assert_eq!(of(0.0, 100.0), ["0", "20", "40", "60", "80", "100"]);
        assert_eq!(
            of(-0.2, 0.4),
            ["-0.2", "-0.1", "0.0", "0.1", "0.2", "0.3", "0.4"]
        );
        let log = Ruler::horizontal(&Axis::new("x").log(), [0.5, 20.0].into_iter(), 0.0, 1.0);
        assert_eq!(labels(&log), ["0.5", "1", "2", "5", "10", "20"]);
    }

    #[test]
    fn the_vertical_axis_ends_above_all_values() {
        let ruler = Ruler::vertical(&Axis::new("y"), [3.0, 40.5].into_iter(), 1.0, 0.0);
        assert_eq!((ruler.from, ruler.to), (0.0, 50.0));
        let nothing = Ruler::vertical(&Axis::new("y"), [].into_iter(), 1.0, 0.0);
        assert_eq!((nothing.from, nothing.to), (0.0, 1.0));
        let zero = Ruler::vertical(&Axis::new("y"), [0.0].into_iter(), 1.0, 0.0);
        assert_eq!((zero.from, zero.to), (0.0, 1.0));
    }

    #[test]
    fn numbers_are_short() {
        let said = [0.0, 18.0, 1.25, 0.012_345, 1_134.7, 99.99, -2.5].map(short);
        assert_eq!(said, ["0", "18", "1.25", "0.0123", "1135", "100", "-2.5"]);
    }
}
