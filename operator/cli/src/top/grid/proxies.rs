//! Proxies.

use std::time::Duration;

use super::{
    BAD, Choice, Column, FAINT, GOOD, Row, WARNING, left, plain, refused_share, right, row, slots,
    toned, unwanted,
};
use crate::top::format::{UNKNOWN, rate};
use crate::top::view::{ProxyRow, State, View};
use headgate_controller::xds::timestamp::age;

pub(super) const COLUMNS: &[Column] = &[
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

/// Returns the proxies of `choice`, in its order.
pub(super) fn rows(view: &View, choice: &Choice) -> Vec<Row> {
    let wanted = |p: &&ProxyRow| {
        let names = [&p.proxy, &p.node].into_iter().chain(&p.policies);
        { names }.any(|name| choice.wants(name))
    };
    let mut rows: Vec<Row> = view.proxies.iter().filter(wanted).map(proxy).collect();
    choice.sort(&mut rows, |row| row);
    rows
}

fn proxy(p: &ProxyRow) -> Row {
    let span = |seconds: u64| age(Duration::from_secs(seconds));
    let dashed = |text: &str| plain(if text.is_empty() { UNKNOWN } else { text });
    let [refused, _] = unwanted(p.refused_rate, p.arrival_rate);
    let cells = vec![
        plain(p.proxy.clone()),
        match p.state {
            State::Asked => toned("asked", FAINT),
            State::Answers => toned("answers", GOOD),
            State::Unreachable => toned("UNREACHABLE", BAD),
        },
        dashed(&p.node),
        dashed(&p.version),
        dashed(p.filter.unwrap_or_default()),
        plain(p.uptime_seconds.map_or_else(|| UNKNOWN.to_owned(), span)),
        match p.restarts {
            0 => toned("0", FAINT),
            n => toned(n.to_string(), WARNING),
        },
        plain(rate(p.arrival_rate)),
        refused,
        slots(p.slots_in_use, p.slots),
        match &p.problem {
            Some(why) => {
                let silent = span(p.silent_seconds.unwrap_or(0.0) as u64);
                toned(format!("{why} (for {silent})"), BAD)
            }
            None => plain(p.policies.join(", ")),
        },
    ];
    let ranks = [
        // A silent proxy may be worse than any that answers.
        match p.state {
            State::Unreachable => f64::INFINITY,
            State::Asked | State::Answers => p.hurt,
        },
        p.arrival_rate.unwrap_or(0.0),
        refused_share(p.refused_rate, p.arrival_rate),
        0.0,
    ];
    row(&p.proxy, cells, ranks)
}
