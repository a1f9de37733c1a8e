//! Tests of requests that miss their objective because of their size, even on an idle backend.

use super::*;
use crate::config::{RequestCost, RequestSize};

/// Sends requests for `secs`. Each second, 30 uploads take 10 or 30 ms, and 15 reports take 80 ms.
/// They demand 1.8 slots. Every 150 ms, a client of uploads states a size that takes 400 ms, and
/// leaves once its request is admitted. Returns the reasons for refusals of uploads and reports.
fn serve(process: &mut Process, secs: u64, oversized: bool) -> [Vec<Reason>; 2] {
    let refused_before = process.refused.len();
    let (mut reports, mut ends) = (BTreeSet::new(), BTreeMap::<u64, Vec<u32>>::new());
    let upload = |process: &mut Process, size: &'static str| {
        let request = MemoryRequest::get("/slow").with("content-length", size);
        process.arrive_as(0, &request, None)
    };
    for step in 0..100 * secs {
        for stream in ends.remove(&step).unwrap_or_default() {
            process.finish(stream, Outcome::Completed);
        }
        if step * 3 / 10 > step.saturating_sub(1) * 3 / 10 {
            let (size, steps) = if step % 2 == 0 { ("1", 1) } else { ("3", 3) };
            let stream = upload(process, size);
            ends.entry(step + steps).or_default().push(stream);
        }
        if step * 3 / 20 > step.saturating_sub(1) * 3 / 20 {
            let stream = process.arrive(0, "/");
            reports.insert(stream);
            ends.entry(step + 8).or_default().push(stream);
        }
        if oversized && step % 15 == 7 {
            let stream = upload(process, "40");
            process.finish(stream, Outcome::Abandoned);
        }
        process.run_for(Duration::from_millis(10));
    }
    for stream in ends.into_values().flatten() {
        process.finish(stream, Outcome::Completed);
    }
    let refused = process.refused[refused_before..].iter();
    let (of_reports, of_uploads): (Vec<&(u32, Reason)>, Vec<_>) =
        refused.partition(|(stream, _)| reports.contains(stream));
    [of_uploads, of_reports].map(|of| of.into_iter().map(|(_, reason)| *reason).collect())
}

fn process() -> Process {
    let mut config = broken::by_value(4);
    let types = &mut config.stages[0].types;
    for (kind, ms) in types.iter_mut().zip([300, 1_000]) {
        kind.slo = vec![Objective {
            percentile: 90.0,
            objective_us: ms * 1_000,
        }];
    }
    types[0].cost = Some(RequestCost {
        size: RequestSize {
            header: "content-length".to_owned(),
        },
    });
    Process::new(1, &config)
}

#[test]
fn a_request_that_is_late_by_its_size_costs_no_other_its_slot() {
    let mut process = process();
    assert_eq!(serve(&mut process, 10, false), [const { Vec::new() }; 2]);
    let [uploads, reports] = serve(&mut process, 30, true);
    assert!(uploads.len() > 100, "{}", uploads.len());
    assert!(
        uploads
            .iter()
            .all(|reason| *reason == Reason::Objective(90.0)),
        "{uploads:?}"
    );
    assert!(reports.is_empty(), "{reports:?}");
}

#[test]
fn a_request_that_is_late_by_its_size_keeps_no_retry_out() {
    let mut process = process();
    serve(&mut process, 10, false);
    let running = process.arrive(0, "/");
    let before = process.refused.len();
    for _ in 0..9 {
        let request = MemoryRequest::get("/slow").with("content-length", "40");
        let stream = process.arrive_as(0, &request, None);
        process.finish(stream, Outcome::Abandoned);
    }
    assert!(process.refused.len() > before);
    let retry = MemoryRequest::get("/slow").with("content-length", "1");
    let retry = process.arrive_as(0, &retry.with("x-envoy-attempt-count", "2"), None);
    assert!(process.requests.contains_key(&retry), "a slot is free");
    process.finish(running, Outcome::Completed);
}
