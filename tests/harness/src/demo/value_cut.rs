//! The value cut of a running proxy, read from its stats, as one picture. Types are bars in the
//! order of value per slot time, and the cut goes through the slots that they demand.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::chart::{escape, nice_step};
use super::palette;
use super::result::DemoResult;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 310.0;
/// The left end of the axis of slots, px.
const LEFT: f64 = 60.0;
/// The length of the axis of slots, px.
const LENGTH: f64 = 630.0;
/// The y coordinate of the axis of slots, px.
const BASE: f64 = 250.0;
/// The height of the lowest bar, px.
const LOWEST: f64 = 36.0;
/// The height of the highest bar, px.
const HIGHEST: f64 = 140.0;
/// The width of a character of a label, px, by which long labels are kept inside the picture.
const CHARACTER: f64 = 7.0;

/// The value cut at one moment.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ValueCut {
    /// The number of slots that the cut distributes.
    pub given: f64,
    /// The types by rank, the highest first.
    pub types: Vec<Ranked>,
}

/// A type in the value cut.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Ranked {
    /// The index of the type in the mix.
    pub kind: usize,
    /// The value that a second in a slot yields.
    pub per_slot_second: f64,
    /// The number of slots that the type's arrivals demand.
    pub asked: f64,
    /// The part of the type's requests that is admitted, ratio 0..=1.
    pub admitted: f64,
}

impl ValueCut {
    /// Reads the value cut from the stats of a policy. The names of the stats are without the
    /// policy's name.
    ///
    /// # Errors
    /// If a gauge of a type is missing.
    pub fn of(stats: &BTreeMap<String, u64>, types: &[&str]) -> Result<Self> {
        let stat = |name: &str| {
            let value = stats.get(name).copied();
            value.with_context(|| format!("the proxy has no stat {name}"))
        };
        let milli = |name: &str| Ok::<_, anyhow::Error>(stat(name)? as f64 / 1e3);
        let ranked = |(kind, name): (usize, &&str)| {
            Ok(Ranked {
                kind,
                per_slot_second: milli(&format!("type.{name}.value_per_slot_second_milli"))?,
                asked: milli(&format!("type.{name}.value_slots_asked_milli"))?,
                admitted: milli(&format!("type.{name}.value_admitted_permille"))?,
            })
        };
        let mut types: Vec<Ranked> = types
            .iter()
            .enumerate()
            .map(ranked)
            .collect::<Result<_>>()?;
        types.sort_by(|a, b| b.per_slot_second.total_cmp(&a.per_slot_second));
        Ok(Self {
            given: milli("value_budget_permille")? * stat("slots")? as f64,
            types,
        })
    }
}

/// Returns the cut of the phase with Headgate as a stand-alone SVG file. Returns `None` if the cut
/// wasn't read.
pub fn svg(result: &DemoResult) -> Option<String> {
    let cut = result.with.value_cut.as_ref()?;
    let name = |ranked: &Ranked| {
        let setup = result.setup.types.get(ranked.kind);
        setup.map_or("", |setup| setup.name.as_str())
    };
    let load = result.setup.overload;
    let words: Vec<String> = (cut.types.iter())
        .map(|ranked| format!("{:.0}% of {}", ranked.admitted * 100.0, name(ranked)))
        .collect();
    let mut out = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{} types as bars in order of value per slot time. At {load} times the capacity the cut admits {}."><style>{}svg .label{{font-size:13px}} svg .pale{{fill-opacity:.28}}
</style><rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="var(--bg)"/>"#,
        cut.types.len(),
        escape(&words.join(", ")),
        palette::CSS
    );
    let _ = write!(
        out,
        r#"<text class="head" x="24" y="30">{load} times the capacity: which requests get the slots</text><text class="sub" x="24" y="50">Width: slots that a type asks for. Height (log scale) and number: value that a second in a slot yields.</text>"#
    );
    let asked: f64 = cut.types.iter().map(|ranked| ranked.asked).sum();
    let most = asked.max(cut.given).max(f64::MIN_POSITIVE);
    let at = |slots: f64| LEFT + LENGTH * slots / most;
    let tops = tops(&cut.types);
    let mut from = 0.0;
    let mut labels = Vec::new();
    for (ranked, top) in cut.types.iter().zip(&tops) {
        let (x, filled) = (at(from), at(from + ranked.asked * ranked.admitted));
        from += ranked.asked;
        for (class, x, end) in [("", x, filled), (" pale", filled, at(from))] {
            let _ = write!(
                out,
                r#"<rect class="dot{}{class}" x="{x:.1}" y="{top:.1}" width="{:.1}" height="{:.1}"/>"#,
                ranked.kind % 4,
                end - x,
                BASE - top
            );
        }
        let text = format!(
            "{}: {:.0}/s, {:.0}% admitted",
            name(ranked),
            ranked.per_slot_second,
            ranked.admitted * 100.0
        );
        let end = WIDTH - 16.0 - CHARACTER * text.chars().count() as f64;
        labels.push((x.min(end) + 2.0, *top - 8.0, text));
    }
    axis(&mut out, most, at);
    cut_line(&mut out, cut.given, at(cut.given));
    // Each label is above its own bar, and above the labels at its right.
    let mut lowest = BASE;
    for (x, y, text) in labels.iter().rev() {
        lowest = y.min(lowest - 17.0);
        let _ = write!(
            out,
            r#"<text class="label halo" x="{x:.1}" y="{lowest:.1}">{}</text>"#,
            escape(text)
        );
    }
    out.push_str("</svg>\n");
    Some(out)
}

/// Returns the upper ends of the bars.
fn tops(types: &[Ranked]) -> Vec<f64> {
    let ranks = types.iter().map(|ranked| ranked.per_slot_second.max(1e-3));
    let least = ranks.clone().fold(f64::INFINITY, f64::min);
    let most = ranks.clone().fold(0.0, f64::max);
    let share = |rank: f64| match most > least {
        true => (rank / least).ln() / (most / least).ln(),
        false => 1.0,
    };
    ranks
        .map(|rank| BASE - LOWEST - (HIGHEST - LOWEST) * share(rank))
        .collect()
}

fn axis(out: &mut String, most: f64, at: impl Fn(f64) -> f64) {
    let _ = write!(
        out,
        r#"<line class="axis" x1="{LEFT}" x2="{:.1}" y1="{BASE}" y2="{BASE}"/>"#,
        LEFT + LENGTH + 20.0
    );
    let step = nice_step(most / 6.0);
    for slots in (0..)
        .map(|i| f64::from(i) * step)
        .take_while(|s| *s <= most)
    {
        let _ = write!(
            out,
            r#"<text class="tick" x="{:.1}" y="{}" text-anchor="middle">{slots}</text>"#,
            at(slots),
            BASE + 17.0
        );
    }
    let _ = write!(
        out,
        r#"<text class="tick" x="{:.1}" y="{}">slots</text>"#,
        LEFT + LENGTH + 22.0,
        BASE + 17.0
    );
}

fn cut_line(out: &mut String, given: f64, x: f64) {
    let (side, at) = match x < LEFT + LENGTH / 2.0 {
        true => ("start", x + 7.0),
        false => ("end", x - 7.0),
    };
    let _ = write!(
        out,
        r#"<line class="limit" x1="{x:.1}" x2="{x:.1}" y1="72" y2="{}"/><text class="label halo" x="{at:.1}" y="82" text-anchor="{side}">the cut: {given:.1} slots are given out</text><text class="sub" x="24" y="{}">Filled: admitted by the cut. Pale: refused, reason value. Read once from the stats of the demo’s proxy.</text>"#,
        BASE + 4.0,
        HEIGHT - 14.0
    );
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::demo) fn cut() -> ValueCut {
        let stats: BTreeMap<String, u64> = [
            ("slots", 20),
            ("value_budget_permille", 1_010),
            ("type.fast.value_per_slot_second_milli", 210_000),
            ("type.fast.value_slots_asked_milli", 2_100),
            ("type.fast.value_admitted_permille", 1_000),
            ("type.slow.value_per_slot_second_milli", 12_500),
            ("type.slow.value_slots_asked_milli", 9_100),
            ("type.slow.value_admitted_permille", 0),
            ("type.medium.value_per_slot_second_milli", 20_000),
            ("type.medium.value_slots_asked_milli", 19_000),
            ("type.medium.value_admitted_permille", 950),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        ValueCut::of(&stats, &["fast", "slow", "medium"]).unwrap()
    }

    #[test]
    fn stats_are_read_by_rank() {
        let cut = cut();
        assert_eq!(cut.given, 20.2);
        let kinds: Vec<usize> = cut.types.iter().map(|ranked| ranked.kind).collect();
        assert_eq!(kinds, [0, 2, 1]);
        let medium = &cut.types[1];
        assert_eq!((medium.asked, medium.admitted), (19.0, 0.95));
        let error = ValueCut::of(&BTreeMap::new(), &["fast"]).unwrap_err();
        assert!(
            error.to_string().contains("type.fast.value_per_slot"),
            "{error}"
        );
    }

    #[test]
    fn bars_fall_from_rank_to_rank() {
        let tops = tops(&cut().types);
        assert_eq!(tops.first(), Some(&(BASE - HIGHEST)));
        assert_eq!(tops.last(), Some(&(BASE - LOWEST)));
        assert!(tops.is_sorted(), "{tops:?}");
    }
}
