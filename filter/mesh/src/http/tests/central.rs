//! Tests of class admission by a server: a proxy's reports, and the effect of the server's answers.

use super::classes::{HIGH, IN_TIME, LATE, PROMISE, outbound};
use super::*;
use crate::engine::Callout;
use headgate_admission::Server;
use headgate_admission::protocol::{ClassReport, Report};

const MISSES: &str = r#"{"type":"Misses","allowed":2,"period_us":10000000}"#;
const INCAST: &str = r#"{"type":"Incast","smoothing":0.5}"#;

/// Returns a proxy with centralized class admission of its calls, one second after the start of its
/// clock.
fn sender(method: &str, fallback: &str) -> Proxy {
    let central = format!(
        r#""enforced":true,"central":{{"service":"ns/stock","method":{method},"scope":"Class",
        "report_us":100000,"fallback":"{fallback}"}}"#
    );
    let mut sender = Proxy::new("");
    sender.configure(&outbound(&PROMISE.replace(r#""enforced":true"#, &central)));
    sender.ms = 1_000;
    sender
}

impl Proxy {
    /// Returns the report that a tick sends, if any.
    fn reports(&mut self) -> Option<Callout> {
        let tick = self.stream(&[]);
        report(&mut self.filter, &tick)
    }

    /// Handles the server's answer, or the lack of an answer. Returns the number of lines that this
    /// logs.
    fn hears(&mut self, answer: Option<&[u8]>) -> usize {
        let callback = self.stream(&[]);
        super::reported(&mut self.filter, &callback, answer);
        callback.log.take().len()
    }

    /// Makes a call that requests `high`, and returns whether it runs in `low`.
    fn is_downgraded(&mut self) -> bool {
        let call = self.call(&HIGH);
        call.0.in_request(wire::CLASS).as_deref() == Some("low")
    }

    /// Makes a call that requests `high` and is answered after `ms`.
    fn completes(&mut self, ms: u64, answer: &[(&str, &str)]) {
        let mut call = self.call(&HIGH);
        self.answer(&mut call, ms, answer);
    }

    fn value(&self, name: &str) -> u64 {
        let name = format!("headgate.policy.ns/p.{name}");
        self.filter.host().value(&name).unwrap()
    }
}

fn answer(server: &mut Server, ms: u64, callout: &Callout) -> Vec<u8> {
    let report: Report<'_> = serde_json::from_slice(&callout.body).unwrap();
    let now = Instant::default() + Duration::from_millis(ms);
    serde_json::to_vec(&server.exchange(now, None, &report).unwrap()).unwrap()
}

fn reported(callout: &Callout) -> ClassReport {
    let report: Report<'_> = serde_json::from_slice(&callout.body).unwrap();
    report.services[0].classes[0]
}

#[test]
fn a_proxy_does_as_the_server_says_while_it_says_something() {
    for (fallback, alone) in [("Admit", false), ("Distributed", true)] {
        let (mut sender, mut server) = (sender(MISSES, fallback), Server::default());
        assert_eq!(sender.reports(), None, "no calls");
        sender.ms += 100;
        sender.completes(100, &LATE);
        // The fallback decides until the server answers. Alone, this policy allows a sender only
        // one miss.
        assert_eq!(sender.is_downgraded(), alone);
        let first = sender.reports().unwrap();
        assert_eq!(
            (first.cluster, first.path),
            ("headgate_admission", "/v1/admission")
        );
        assert_eq!(reported(&first).misses, 1);
        assert_eq!(sender.reports(), None, "the next is not due");
        assert_eq!(sender.hears(Some(&answer(&mut server, 0, &first))), 0);
        // The server allows two misses.
        assert!(!sender.is_downgraded());
        assert_eq!(sender.of_class("admit_permille"), 1_000);
        sender.completes(100, &LATE);
        let second = sender.reports().unwrap();
        assert_eq!(
            reported(&second).misses,
            1,
            "what was reported is not again"
        );
        sender.hears(Some(&answer(&mut server, 9_000, &second)));
        assert!(sender.is_downgraded());
        assert_eq!(sender.of_class("admit_permille"), 0);

        // One answer is lost and one is invalid, but the earlier decisions still hold.
        sender.ms += 150;
        assert!(sender.reports().is_some());
        assert_eq!(sender.hears(None), 1, "reported once");
        assert_eq!(sender.hears(Some(b"{}")), 0);
        assert!(sender.is_downgraded());
        // Without answers, the decisions end, and the fallback decides.
        sender.ms += 300;
        assert_eq!(sender.is_downgraded(), alone);
        assert!(sender.reports().is_some());
        let shown = if alone { 0 } else { 1_000 };
        assert_eq!(sender.of_class("admit_permille"), shown);
        assert_eq!(
            (
                sender.value("admission_reports"),
                sender.value("admission_reports_lost")
            ),
            (4, 2)
        );
        // In the next period the server answers.
        sender.ms += 100;
        let last = sender.reports().unwrap();
        assert_eq!(sender.hears(Some(&answer(&mut server, 10_000, &last))), 1);
        assert!(!sender.is_downgraded());
        // A service that is no longer called is left out of reports, so there is no report.
        sender.ms += 10_001;
        assert_eq!(sender.reports(), None);
    }
}

/// After the server's decisions end, the gauge shows the sender's own probability. It has not
/// changed since, because no call ran in the class.
#[test]
fn without_the_server_the_gauge_shows_the_senders_own_law() {
    let (mut sender, mut server) = (sender(MISSES, "Distributed"), Server::default());
    sender.completes(100, &LATE);
    let report = sender.reports().unwrap();
    sender.hears(Some(&answer(&mut server, 0, &report)));
    assert!(!sender.is_downgraded());
    assert_eq!(sender.of_class("admit_permille"), 1_000);
    sender.ms += 1_000;
    assert!(sender.is_downgraded());
    let until = sender.value("service.stock.central.heard");
    sender.reports();
    assert_eq!(sender.of_class("admit_permille"), 0);
    let read = sender.value("service.stock.central.heard");
    assert_eq!(read, until, "a worker that reports writes over no decision");
}

/// A call may end after its service was left out of reports.
#[test]
fn misses_are_not_reported_for_a_later_period() {
    let mut sender = sender(MISSES, "Admit");
    let full = "policy=ns/p; type=default; reason=queue_full";
    for _ in 0..2 {
        sender.completes(11_000, &[(":status", "503"), ("x-headgate-refused", full)]);
    }
    assert_eq!(sender.reports(), None);
    sender.ms += 3_600_000;
    sender.completes(1, &LATE);
    assert_eq!(reported(&sender.reports().unwrap()).misses, 0);
    sender.ms += 100;
    sender.completes(100, &LATE);
    assert_eq!(reported(&sender.reports().unwrap()).misses, 1);
}

#[test]
fn a_decision_ends_with_its_period() {
    let (mut sender, mut server) = (sender(MISSES, "Admit"), Server::default());
    (0..2).for_each(|_| sender.completes(100, &LATE));
    let report = sender.reports().unwrap();
    sender.hears(Some(&answer(&mut server, 9_900, &report)));
    assert!(sender.is_downgraded());
    sender.ms += 99;
    assert!(sender.is_downgraded());
    sender.ms += 1;
    assert!(!sender.is_downgraded());
}

#[test]
fn waits_are_reported_apart_from_the_rest_of_the_latency() {
    let (mut sender, mut server) = (sender(INCAST, "Admit"), Server::default());
    // The first call has a queue wait of 40 ms and 5 ms on the way. The second call has a queue
    // wait of 91 ms, which is a miss. The third call is refused.
    sender.completes(105, &IN_TIME);
    sender.completes(100, &LATE);
    let full = "policy=ns/p; type=default; reason=queue_full";
    sender.completes(1, &[(":status", "503"), ("x-headgate-refused", full)]);
    let report = sender.reports().unwrap();
    let expected = ClassReport {
        misses: 2,
        calls: 2,
        delay_us: 131_000,
        round_trip_us: 5_000,
        missed: 1,
        failed: 1,
    };
    assert_eq!(reported(&report), expected);
    sender.hears(Some(&answer(&mut server, 0, &report)));
    assert_eq!(sender.of_class("admit_permille"), 0);
    assert!(sender.is_downgraded());
}

#[test]
fn answers_that_make_no_sense_change_nothing() {
    let mut sender = sender(MISSES, "Admit");
    for answer in [
        r#"{"services":[{"service":"ns/stock","classes":[{"admit":-1}]}]}"#,
        r#"{"services":[{"service":"ns/stock","classes":[{"admit":2}]}]}"#,
        // An answer about another service, and an answer with another number of classes.
        r#"{"services":[{"service":"ns/other","classes":[{"admit":0}]}]}"#,
        r#"{"services":[{"service":"ns/stock","classes":[{"admit":0},{"admit":0}]}]}"#,
        "",
        "[",
    ] {
        sender.hears(Some(answer.as_bytes()));
        assert!(!sender.is_downgraded(), "{answer}");
    }
    sender.hears(Some(
        br#"{"services":[{"service":"ns/stock","classes":[{"admit":0}],"more":1}]}"#,
    ));
    assert!(sender.is_downgraded());
    // Without an outbound listener no report is sent.
    let stream = sender.stream(&[]);
    sender.filter.gone(&stream, OUT);
    assert_eq!(sender.reports(), None);
    assert_eq!(sender.hears(None), 0);
}
