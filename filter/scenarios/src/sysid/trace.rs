//! A trace for system identification. It has a row with the delay and the backlog of each sampling
//! period.
//!
//! The format is CSV with a header line, or the JSON that `headgate simulate --json` writes, whose
//! rows have the same columns. Columns are found by name. A name may end in a unit (`delay_ms`,
//! `time (s)`). The rows can also be computed from an access log ([`super::log`]).

use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use headgate_simulator::workload::recorded::is_access_log;

use super::{Segment, log};
use crate::show::unique;

/// The names of the columns to read. For `None`, the usual names are tried.
#[derive(Debug, Clone, Default)]
pub struct Columns {
    /// The name of the column of mean delays.
    pub delay: Option<String>,
    /// The name of the column of backlogs.
    pub backlog: Option<String>,
    /// The name of the column of times.
    pub time: Option<String>,
}

/// A trace of delays and backlogs.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// The parts of the trace without a gap.
    pub segments: Vec<Segment>,
    /// The time between rows, s, or `None` without a column of times.
    pub period: Option<f64>,
    /// The number of rows with both a delay and a backlog.
    pub samples: usize,
    /// The names of the columns of delays and backlogs.
    pub used: (String, String),
}

const DELAYS: [&str; 7] = [
    "delay",
    "service_delay",
    "mean_delay",
    "response_time",
    "latency",
    "rt",
    "s",
];
const BACKLOGS: [&str; 6] = [
    "backlog",
    "queued_work",
    "work",
    "queue_length",
    "queued",
    "d",
];
const TIMES: [&str; 4] = ["time", "timestamp", "at", "t"];
/// The ratio of a period by which the time between two rows may differ from the period without
/// being a gap.
const JITTER: f64 = 0.25;

/// A table of numbers. Each row has its file and line.
struct Rows {
    names: Vec<String>,
    rows: Vec<(String, Vec<Option<f64>>)>,
}

/// Reads a trace. `file` is the name of the file for messages. `of_log` is the period of the rows
/// that are computed from an access log.
///
/// # Errors
/// Returns the mistake in the trace, with file and line.
pub fn read(file: &str, text: &str, columns: &Columns, of_log: Duration) -> anyhow::Result<Trace> {
    let rows = if is_access_log(text.as_bytes()) {
        from_log(file, text, of_log)?
    } else if text.trim_start().starts_with(['{', '[']) {
        from_json(file, text)?
    } else {
        from_csv(file, text)?
    };
    if rows.rows.is_empty() {
        bail!(
            "{file}: no rows; write a header line such as time_s,delay_s,backlog and a row for \
             each period"
        );
    }
    let find = |wanted: Option<&String>, known: &[&str], what: &str| {
        column(&rows.names, wanted, known).ok_or_else(|| no_column(file, &rows.names, wanted, what))
    };
    let delay = find(columns.delay.as_ref(), &DELAYS, "delay")?;
    let backlog = find(columns.backlog.as_ref(), &BACKLOGS, "backlog")?;
    let time = match &columns.time {
        Some(_) => Some(find(columns.time.as_ref(), &TIMES, "time")?),
        None => column(&rows.names, None, &TIMES),
    };
    let seconds = |at: usize| unit(&rows.names[at]).1;
    let (delay_unit, time_unit) = (seconds(delay), time.map(seconds));
    let times: Option<Vec<f64>> = match (time, time_unit) {
        (Some(column), Some(unit)) => {
            let of = |(line, row): &(String, Vec<Option<f64>>)| {
                row[column]
                    .map(|t| t * unit)
                    .ok_or_else(|| anyhow!("{line}: no number in column {:?}", rows.names[column]))
            };
            Some(rows.rows.iter().map(of).collect::<Result<_, _>>()?)
        }
        _ => None,
    };
    let period = times
        .as_deref()
        .map(|times| period(times, &rows.rows))
        .transpose()?;
    let mut segments = vec![Segment::default()];
    let mut samples = 0;
    for (at, (line, row)) in rows.rows.iter().enumerate() {
        let gap = match (&times, period) {
            (Some(times), Some(period)) if at > 0 => {
                (times[at] - times[at - 1] - period).abs() > JITTER * period
            }
            _ => false,
        };
        let (s, d) = (row[delay], row[backlog]);
        for (value, column) in [(s, delay), (d, backlog)] {
            if let Some(value) = value.filter(|v| *v < 0.0) {
                bail!(
                    "{line}: {value} in column {:?}; at least 0",
                    rows.names[column]
                );
            }
        }
        if gap || s.is_none() || d.is_none() {
            segments.push(Segment::default());
        }
        if let (Some(s), Some(d), Some(segment)) = (s, d, segments.last_mut()) {
            segment.delays.push(s * delay_unit);
            segment.backlogs.push(d);
            samples += 1;
        }
    }
    segments.retain(|s| !s.delays.is_empty());
    Ok(Trace {
        segments,
        period,
        samples,
        used: (rows.names[delay].clone(), rows.names[backlog].clone()),
    })
}

/// Returns the usual time between two rows, s. It is the median.
fn period(times: &[f64], rows: &[(String, Vec<Option<f64>>)]) -> anyhow::Result<f64> {
    let mut steps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    if let Some(at) = steps.iter().position(|step| *step <= 0.0) {
        bail!(
            "{}: time {} follows {}; rows must be in the order of their times",
            rows[at + 1].0,
            times[at + 1],
            times[at]
        );
    }
    if steps.is_empty() {
        bail!("{}: one row; record dozens of rows or more", rows[0].0);
    }
    steps.sort_by(f64::total_cmp);
    Ok(steps[steps.len() / 2])
}

/// Returns the name of a column without its unit, and the unit in seconds.
fn unit(name: &str) -> (String, f64) {
    let plain = name.trim().to_ascii_lowercase();
    let plain = plain.replace(['(', ')', '[', ']'], " ");
    let words: Vec<&str> = plain
        .split([' ', '_', '-', '.'])
        .filter(|word| !word.is_empty())
        .collect();
    let seconds = |word: &str| match word {
        "s" | "sec" | "seconds" => Some(1.0),
        "ms" | "msecs" => Some(1e-3),
        "us" | "µs" | "usecs" => Some(1e-6),
        _ => None,
    };
    match words.split_last() {
        Some((last, rest)) if !rest.is_empty() => match seconds(last) {
            Some(seconds) => (rest.join("_"), seconds),
            None => (words.join("_"), 1.0),
        },
        _ => (words.join("_"), 1.0),
    }
}

fn column(names: &[String], wanted: Option<&String>, known: &[&str]) -> Option<usize> {
    if let Some(wanted) = wanted {
        return names.iter().position(|name| name == wanted);
    }
    let is = |known: &&str| names.iter().position(|name| unit(name).0 == **known);
    known.iter().find_map(is)
}

fn no_column(file: &str, names: &[String], wanted: Option<&String>, what: &str) -> anyhow::Error {
    let there = names.join(", ");
    match wanted {
        Some(wanted) => anyhow!("{file}: no column {wanted:?}; one of {there}"),
        None => anyhow!("{file}: no column of {what}s; name one of {there} with --{what} COLUMN"),
    }
}

fn from_csv(file: &str, text: &str) -> anyhow::Result<Rows> {
    let mut reader = csv::ReaderBuilder::new()
        .trim(csv::Trim::All)
        .comment(Some(b'#'))
        .from_reader(text.as_bytes());
    let names: Vec<String> = reader
        .headers()
        .with_context(|| format!("{file}: not CSV"))?
        .iter()
        .map(str::to_owned)
        .collect();
    if names.iter().all(|name| name.parse::<f64>().is_ok()) {
        bail!(
            "{file}:1: numbers instead of column names; write a header line such as \
             time_s,delay_s,backlog"
        );
    }
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|error| csv_error(file, &error))?;
        let line = record.position().map_or(0, csv::Position::line);
        let line = format!("{file}:{line}");
        let cell = |(cell, name): (&str, &String)| match cell {
            "" | "-" | "NaN" | "nan" => Ok(None),
            // An unused column may contain any text.
            _ => match cell.parse::<f64>() {
                Ok(number) if number.is_finite() => Ok(Some(number)),
                _ if is_used(name) => Err(anyhow!(
                    "{line}: {cell:?} in column {name:?}; a number, or an empty cell for no \
                     measurement"
                )),
                _ => Ok(None),
            },
        };
        let cells = record.iter().zip(&names).map(cell);
        let cells = cells.collect::<anyhow::Result<Vec<_>>>()?;
        rows.push((line, cells));
    }
    Ok(Rows { names, rows })
}

/// Whether a column of this name is used by default.
fn is_used(name: &str) -> bool {
    let plain = unit(name).0;
    let known = DELAYS.iter().chain(&BACKLOGS).chain(&TIMES);
    known.into_iter().any(|known| *known == plain)
}

fn csv_error(file: &str, error: &csv::Error) -> anyhow::Error {
    match error.kind() {
        csv::ErrorKind::UnequalLengths {
            pos,
            expected_len,
            len,
        } => {
            let line = pos.as_ref().map_or(0, csv::Position::line);
            anyhow!("{file}:{line}: {len} cells; {expected_len}, as in the header line")
        }
        _ => anyhow!("{file}: {error}"),
    }
}

fn from_log(file: &str, text: &str, period: Duration) -> anyhow::Result<Rows> {
    let rows = log::rows(text, period).with_context(|| file.to_owned())?;
    let row = |row: log::Period| {
        let at = format!("{file}: {} s", row.time_s);
        (at, vec![Some(row.time_s), row.delay_s, Some(row.backlog)])
    };
    Ok(Rows {
        names: ["time_s", "delay_s", "backlog"].map(str::to_owned).into(),
        rows: rows.into_iter().map(row).collect(),
    })
}

fn from_json(file: &str, text: &str) -> anyhow::Result<Rows> {
    let value: serde_json::Value =
        serde_json::from_str(text).with_context(|| format!("{file}: not JSON"))?;
    let list = value.get("rows").unwrap_or(&value);
    let objects: Vec<_> = list
        .as_array()
        .with_context(|| {
            format!("{file}: no list \"rows\"; use JSON as headgate simulate --json writes it")
        })?
        .iter()
        .map(|row| row.as_object())
        .collect::<Option<_>>()
        .with_context(|| {
            format!(
                "{file}: a row isn't an object; use JSON as headgate simulate \
                                  --json writes it"
            )
        })?;
    let names = unique(
        objects
            .iter()
            .flat_map(|row| row.keys())
            .map(String::as_str),
    );
    let row = |(at, row): (usize, &&serde_json::Map<String, serde_json::Value>)| {
        let cells = names.iter().map(|name| row.get(*name)?.as_f64());
        (format!("{file}: row {}", at + 1), cells.collect())
    };
    Ok(Rows {
        rows: objects.iter().enumerate().map(row).collect(),
        names: names.iter().map(|name| (*name).to_owned()).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn error(text: &str) -> String {
        let error = read("t.csv", text, &Columns::default(), SECOND).unwrap_err();
        format!("{error:#}")
    }

    #[test]
    fn columns_are_found_by_name_and_unit() {
        let text = "t (s), Delay_ms ,host,backlog\n\
                    0,1500,a,10\n1,2000,b,20\n2,,c,30\n3,500,d,5\n5,400,e,4\n";
        let trace = read("t.csv", text, &Columns::default(), SECOND).unwrap();
        assert_eq!(trace.period, Some(1.0));
        assert_eq!(trace.samples, 4);
        let parts: Vec<_> = trace.segments.iter().map(|s| s.delays.clone()).collect();
        assert_eq!(parts, [vec![1.5, 2.0], vec![0.5], vec![0.4]]);
        assert_eq!(trace.used, ("Delay_ms".to_owned(), "backlog".to_owned()));
    }

    #[test]
    fn named_columns_win_and_times_may_be_missing() {
        let columns = Columns {
            delay: Some("p50".into()),
            backlog: Some("waiting".into()),
            time: None,
        };
        let trace = read(
            "t.csv",
            "p50,waiting,delay\n1,2,9\n3,4,9\n",
            &columns,
            SECOND,
        )
        .unwrap();
        assert_eq!(trace.period, None);
        assert_eq!(trace.segments[0].delays, [1.0, 3.0]);
    }

    #[test]
    fn json_of_a_simulation_is_a_trace() {
        let text = r#"{"scenario":"x","rows":[{"time_s":0,"delay_s":1.5,"backlog":7},{"time_s":1,"delay_s":null,"backlog":0}]}"#;
        let trace = read("t.json", text, &Columns::default(), SECOND).unwrap();
        assert_eq!((trace.samples, trace.period), (1, Some(1.0)));
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        assert_eq!(
            error("time_s,delay_s,backlog\n0,1,2\n1,soon,2\n"),
            "t.csv:3: \"soon\" in column \"delay_s\"; a number, or an empty cell for no measurement"
        );
        assert_eq!(
            error("time_s,delay_s,backlog\n0,1\n"),
            "t.csv:2: 2 cells; 3, as in the header line"
        );
        assert_eq!(
            error("time_s,delay_s,backlog\n0,1,2\n0,1,2\n"),
            "t.csv:3: time 0 follows 0; rows must be in the order of their times"
        );
        assert_eq!(
            error("a,b\n1,2\n"),
            "t.csv: no column of delays; name one of a, b with --delay COLUMN"
        );
        assert_eq!(
            error("delay_s,backlog\n1,-2\n"),
            "t.csv:2: -2 in column \"backlog\"; at least 0"
        );
        assert!(error("1,2\n3,4\n").starts_with("t.csv:1: numbers instead of column names"));
        assert!(error("delay,backlog\n").starts_with("t.csv: no rows"));
        assert!(error("{").starts_with("t.csv: not JSON"));
    }
}
