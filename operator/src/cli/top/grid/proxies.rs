//! Proxies.

use super::{
    Choice, Column, Grid, Rank, Ranked, Row, Tone, left, plain, refused_share, right, slots, toned,
    unwanted,
};
use crate::cli::top::format::{UNKNOWN, rate};
use crate::cli::top::view::{ProxyRow, State, View};
use crate::xds::timestamp::age;

const COLUMNS: &[Column] = &[
    left("PROXY", 0),
    left("STATE", 0),
    left("NODE", 3),
    left("ENVOY", 4),
    left("FILTER", 3),
    right("UP", 5),
    right("RESTARTS", 6),
    right("ARRIVE/s", 1),
    right("REFUSE/s", 1),
    right("SLOTS", 2),
    left("POLICIES", 1),
];

/// The proxies themselves.
pub(super) fn rows(view: &View, choice: &Choice) -> Grid {
    let row = |p: &ProxyRow| {
        let state = match p.state {
            State::Asked => toned("asked", Tone::Faint),
            State::Answers => toned("answers", Tone::Good),
            State::Unreachable => toned("UNREACHABLE", Tone::Bad),
        };
        let span = |seconds: u64| age(std::time::Duration::from_secs(seconds));
        let [refused, _] = unwanted(p.refused_rate, p.arrival_rate);
        let last = match &p.problem {
            Some(why) => {
                let silent = span(p.silent_seconds.unwrap_or(0.0) as u64);
                toned(format!("{why} (for {silent})"), Tone::Bad)
            }
            None => plain(p.policies.join(", ")),
        };
        let dashed = |text: &str| plain(if text.is_empty() { UNKNOWN } else { text });
        let restarts = match p.restarts {
            0 => toned("0", Tone::Faint),
            n => toned(n.to_string(), Tone::Warning),
        };
        Ranked {
            cells: vec![
                plain(p.proxy.clone()),
                state,
                dashed(&p.node),
                dashed(&p.version),
                dashed(p.filter.unwrap_or_default()),
                plain(p.uptime_seconds.map_or_else(|| UNKNOWN.to_owned(), span)),
                restarts,
                plain(rate(p.arrival_rate)),
                refused,
                slots(p.slots_in_use, p.slots),
                last,
            ],
            rank: Rank {
                // One that is silent may hurt more than any that answers.
                hurt: match p.state {
                    State::Unreachable => f64::INFINITY,
                    State::Asked | State::Answers => p.hurt,
                },
                rate: p.arrival_rate.unwrap_or(0.0),
                refused: refused_share(p.refused_rate, p.arrival_rate),
                wait: 0.0,
                name: p.proxy.clone(),
            },
        }
    };
    let wanted = |p: &&ProxyRow| {
        choice.wants(&p.proxy)
            || choice.wants(&p.node)
            || p.policies.iter().any(|policy| choice.wants(policy))
    };
    let mut rows: Vec<Ranked> = view.proxies.iter().filter(wanted).map(row).collect();
    choice.sort(&mut rows, |r| &r.rank);
    let rows = rows.into_iter().map(|r| Row {
        cells: r.cells,
        group: false,
        key: r.rank.name,
    });
    Grid {
        columns: COLUMNS.to_vec(),
        rows: rows.collect(),
    }
}
