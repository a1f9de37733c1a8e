use clap::Parser as _;
use headgate_strategies::rng::Rng;

use super::*;

#[derive(Debug, clap::Parser)]
struct Line {
    #[command(flatten)]
    sysid: SysidArgs,
}

fn ask(words: &[&str]) -> anyhow::Result<Output> {
    let line = Line::try_parse_from([&["sysid"], words].concat())?;
    run(&line.sysid)
}

/// Returns a trace of s(k) = 0.6 s(k−1) + 0.002 d(k−1) around a delay of 1.5 s and a backlog of
/// 500.
fn trace_file(noise: f64) -> tempfile::NamedTempFile {
    let mut rng = Rng::new(4);
    let (mut s, mut d) = (0.0, 0.0);
    let mut text = String::from("time_s,delay_ms,backlog\n");
    for k in 0..500 {
        s = 0.6 * s + 0.002 * d + noise * (rng.next_f64() - 0.5);
        d = 400.0 * (rng.next_f64() - 0.5);
        text += &format!("{k},{},{}\n", 1e3 * (1.5 + s), 500.0 + d);
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

#[test]
fn a_trace_gives_gains_for_the_policy() {
    let file = trace_file(0.02);
    let path = file.path().to_str().unwrap();
    let output = ask(&[path]).unwrap();
    assert!(output.ok, "{output:?}");
    for words in [
        "500 periods of 1 s",
        "1       1.000   s(k) = 0.600 s(k-1) + 0.00200 d(k-1)  (used)",
        "stable",
        "proportionalGain: ",
        "integralGain: ",
    ] {
        assert!(output.text.contains(words), "{words}: {}", output.text);
    }
    let json = ask(&[path, "--json", "--settling-time", "90s"]).unwrap();
    let value: serde_json::Value = serde_json::from_str(&json.text).unwrap();
    assert_eq!(value["model"]["order"], 1);
    assert!((value["model"]["a"][0].as_f64().unwrap() - 0.6).abs() < 0.02);
    assert!(value["design"]["settling_s"].as_f64().unwrap() <= 90.0);
    assert_eq!(value["design"]["stable"], true);
}

/// The access log is that of a queue before one server whose load rises and falls. Requests have
/// costs of 1 to 9, and each unit of cost takes 10 ms.
#[test]
fn an_access_log_gives_gains_for_the_policy() {
    let mut rng = Rng::new(7);
    let (mut at, mut free) = (0.0, 0.0_f64);
    let mut log = String::new();
    while at < 500.0 {
        let load = 0.85 + 0.4 * (at / 4.0_f64).sin();
        at += -(1.0 - rng.next_f64()).ln() * 0.05 / load;
        let cost = 1 + (9.0 * rng.next_f64()) as u64;
        let service = cost as f64 * 0.01;
        free = free.max(at) + service;
        let (minutes, seconds) = ((at / 60.0) as u64, at % 60.0);
        log += &format!(r#"{{"start_time":"2026-01-01T00:{minutes:02}:{seconds:06.3}Z","#);
        log += &format!(
            r#""duration":{},"upstream_service_time":{},"x-headgate-cost":"{cost}"}}"#,
            ((free - at) * 1e3) as u64,
            (service * 1e3) as u64
        );
        log += "\n";
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), log).unwrap();
    let output = ask(&[file.path().to_str().unwrap(), "--json"]).unwrap();
    assert!(output.ok, "{output:?}");
    let value: serde_json::Value = serde_json::from_str(&output.text).unwrap();
    assert_eq!(value["design"]["stable"], true, "{value}");
    let fits = value["fits"].as_array().unwrap();
    let r_squared = fits[1]["r_squared"].as_f64().unwrap();
    assert!(r_squared > 0.8, "{value}");
}

#[test]
fn the_papers_gains_are_looked_at_without_a_trace() {
    let model = [
        "--model",
        "-0.003,-0.104;0.015,0.006",
        "--gains",
        "2.77,5.28",
    ];
    let bound = ask(&[&model[..], &["--law", "bound"]].concat()).unwrap();
    assert!(
        bound
            .text
            .contains("poles of the closed loop 0.736, 0.000 ± 0.405i"),
        "{}",
        bound.text
    );
    let adjustment = ask(&model).unwrap();
    assert!(
        adjustment.text.contains("103% overshoot"),
        "{}",
        adjustment.text
    );
}

#[test]
fn an_error_is_one_line() {
    let error = |words: &[&str]| format!("{:#}", ask(words).unwrap_err());
    assert!(error(&["/nowhere.csv"]).starts_with("/nowhere.csv: can't be read"));
    let flat = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(
        flat.path(),
        format!("delay,backlog\n{}", "1,2\n".repeat(50)),
    )
    .unwrap();
    let flat = error(&[flat.path().to_str().unwrap()]);
    assert!(flat.contains("don't vary enough"), "{flat}");
    let file = trace_file(0.0);
    let path = file.path().to_str().unwrap();
    assert!(error(&[path, "--overshoot", "1s"]).contains("is not above --target"));
    assert!(error(&["--model", "1;2,3"]).contains("as many coefficients"));
    let hasty = ask(&[path, "--settling-time", "1s"]).unwrap();
    assert!(
        !hasty.ok && hasty.notes.contains("allow a longer settling time"),
        "{hasty:?}"
    );
}
