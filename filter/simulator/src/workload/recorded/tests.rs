use std::fmt::Write as _;

use super::*;
use crate::samples::stage;
use crate::workload::file::{Numbers, Right, WorkloadFile};

fn read(log: &str) -> Recording {
    Recording::read(log.as_bytes(), &stage()).unwrap()
}

fn names(recording: &Recording) -> Vec<&str> {
    recording
        .types()
        .iter()
        .map(|(name, _)| name.as_str())
        .collect()
}

const ENVOY: &str = r#"[2026-01-05T10:00:00.250Z] "GET /q/slow?x=1 HTTP/1.1" 200 - 0 1024 31 30 "10.0.0.9" "curl/8" "5f0c" "search" "10.0.0.2:80"
[2026-01-05T10:00:00.100Z] "POST /q/fast HTTP/2" 200 - 12 4 2 - "-" "agent with spaces" "id" "search" "10.0.0.2:80"
[2026-01-05T10:00:00.400Z] "GET /q/fast HTTP/1.1" 503 UO 0 81 0 - "-" "-" "-" "search" "-"
"#;

#[test]
fn envoys_default_format_is_read() {
    let recording = read(ENVOY);
    assert_eq!(names(&recording), ["fast", "slow"]);
    let requests: Vec<(u64, usize, u64)> = recording
        .requests
        .iter()
        .map(|r| (r.at / 1_000_000, r.kind, r.processing))
        .collect();
    // Requests are in the order of their starts. The refused request gets the service time of the
    // other request of its type.
    assert_eq!(
        requests,
        [(0, 0, 2_500_000), (150, 1, 30_500_000), (300, 0, 2_500_000)]
    );
    assert_eq!(
        recording.notes(),
        [
            "1 of 3 requests were answered by Envoy itself; each gets the service time of another \
             request of its type"
        ]
    );
    assert_eq!(recording.length_ns(), 300_000_000);
}

#[test]
fn istios_and_headgates_formats_are_read() {
    let istio = r#"[2026-01-05T10:00:00.100Z] "GET /q/slow HTTP/1.1" 200 - via_upstream - "-" 0 1024 31 30 "-" "curl/8" "5f0c" "search:80" "10.0.0.2:80" inbound|80|| 127.0.0.6:1 10.0.0.2:80 10.0.0.9:2 outbound_.80 default"#;
    let headgate = r#"[2026-01-05T10:00:01.100Z] "GET /q/fast HTTP/1.1" 200 - via_upstream 4ms refused="-" retry_after=- upstream=3ms
[2026-01-05T10:00:02.100Z] "GET /q/fast HTTP/1.1" 503 - headgate_slo_p50 0ms refused="policy=default/search; type=fast; reason=slo_p50" retry_after=1 upstream=-ms"#;
    let recording = read(&format!("{istio}\n{headgate}\n"));
    let times: Vec<u64> = recording
        .requests
        .iter()
        .map(|r| r.processing / 1_000)
        .collect();
    assert_eq!(times, [30_500, 3_500, 3_500]);
    assert_eq!(recording.unserved, 1);
}

#[test]
fn json_lines_are_read_by_the_names_that_are_in_use() {
    let log = r#"{"start_time":"2026-01-05T10:00:00.000Z","method":"GET","path":"/q/slow","x-envoy-original-path":null,"duration":12,"upstream_service_time":"11","upstream_host":"10.0.0.2:80","response_code":200}
{"startTime":"2026-01-05T10:00:00.010Z",":method":"GET",":path":"/x","x-envoy-original-path":"/q/fast","DURATION":7.25,"x-envoy-upstream-service-time":null}
{"@timestamp":1767607200.02,"request_method":"GET","requestPath":"/q/mediumfast","duration_ms":5,"x-headgate-timeout-ms":"40","request_headers":{"x-headgate-cost":"17"}}
{"start_time":"2026-01-05T10:00:00.030Z","method":"GET","path":"/q/slow","duration":0,"upstream_host":null}
"#;
    let recording = read(log);
    assert_eq!(names(&recording), ["fast", "mediumfast", "slow"]);
    let times: Vec<u64> = recording
        .requests
        .iter()
        .map(|r| r.processing / 1_000)
        .collect();
    assert_eq!(times, [11_500, 7_250, 5_500, 11_500]);
    let third = &recording.requests[2];
    assert_eq!(third.cost, 17);
    assert_eq!(third.deadline, Some(std::time::Duration::from_millis(40)));
    assert_eq!(recording.unserved, 1);
}

/// The line is in the default format of Envoy Gateway 1.9.
#[test]
fn the_json_lines_of_envoy_gateway_are_read() {
    let log = r#"{":authority":"shop.example","bytes_received":0,"bytes_sent":3,"connection_termination_details":null,"downstream_local_address":"10.244.0.9:10080","downstream_remote_address":"10.200.0.1:51662","duration":12,"method":"GET","protocol":"HTTP/1.1","requested_server_name":null,"response_code":200,"response_code_details":"via_upstream","response_flags":"-","route_name":"httproute/shop/search/rule/0/match/0/*","start_time":"2026-01-05T10:00:00.000Z","upstream_cluster":"httproute/shop/search/rule/0","upstream_host":"10.244.0.7:8080","upstream_local_address":"10.244.0.9:38718","upstream_transport_failure_reason":null,"user-agent":null,"x-envoy-origin-path":"/q/slow","x-envoy-upstream-service-time":"11","x-forwarded-for":"10.200.0.1","x-request-id":"dc4159c1-f7cd-4b24-a2cb-a1d6cd5d26e8"}
"#;
    let recording = read(log);
    assert_eq!(names(&recording), ["slow"]);
    assert_eq!(recording.requests[0].processing, 11_500_000);
    assert_eq!(recording.unserved, 0);
}

#[test]
fn lines_that_are_no_requests_are_counted_by_reason_with_their_numbers() {
    let mut log = String::from("starting up\n\n{\"message\": \"hello\"}\n");
    log.push_str(ENVOY);
    let _ = writeln!(
        log,
        "[2026-01-05T10:00:00.250Z] \"GET /q/slow HTTP/1.1\" 200 -"
    );
    log.push_str("[warning] something odd\n[1] two\n[2] three\n[3] four\n{\"truncated\": ");
    let recording = read(&log);
    assert_eq!(recording.count(), 3);
    assert_eq!(
        recording.notes()[..3],
        [
            "6 lines were skipped: neither a JSON object nor Envoy's text format \
             (lines 1, 8, 9, …)",
            "1 line was skipped: no START_TIME (line 3)",
            "1 line was skipped: neither DURATION nor x-envoy-upstream-service-time (line 7)",
        ]
    );
}

#[test]
fn excluded_requests_are_left_out_of_the_recording() {
    let mut stage = stage();
    stage.excluded = stage.types[0].matches.clone();
    let recording = Recording::read(ENVOY.as_bytes(), &stage).unwrap();
    assert_eq!(names(&recording), ["slow"]);
    assert_eq!(
        recording.notes(),
        ["2 lines were skipped: bypasses the policy (lines 2, 3)"]
    );
}

#[test]
fn a_log_without_requests_says_why() {
    let error = |log: &str| {
        let error = Recording::read(log.as_bytes(), &stage()).unwrap_err();
        error.to_string()
    };
    assert_eq!(error("\n"), "no request: the file is empty");
    assert_eq!(
        error("a\nb\n"),
        "no request: 2 lines were skipped: neither a JSON object nor Envoy's text format \
         (lines 1, 2)"
    );
    let refused = ENVOY.lines().nth(2).unwrap();
    assert_eq!(
        error(&format!("{refused}\n{refused}\n")),
        "no service time: Envoy answered all 2 requests itself"
    );
    let line = ENVOY.lines().next().unwrap();
    for year in ["1969", "2554", "9999"] {
        let log = line.replace("2026", year);
        assert!(is_access_log(log.as_bytes()));
        assert_eq!(
            error(&log),
            "no request: 1 line was skipped: START_TIME before 1970 or after 2539 (line 1)"
        );
    }
}

#[test]
fn a_log_is_distinguished_from_yaml() {
    for log in [
        ENVOY,
        r#"{"start_time":"2026-01-05T10:00:00.000Z","path":"/"}"#,
        &format!("[2026-01-05 10:00:00.000][1][warning][main] [main.cc:1] starts\n{ENVOY}"),
    ] {
        assert!(is_access_log(log.as_bytes()), "{log}");
    }
    for yaml in [
        "types:\n- {name: a}\n",
        "{types: []}",
        r#"{"types": [], "load": 1}"#,
        "# a comment\n[a, b]",
        "",
    ] {
        assert!(!is_access_log(yaml.as_bytes()), "{yaml}");
    }
}

/// Returns the times of a replay, ms, and the types.
fn times(recording: &Recording, speed: f64, warm_up_ms: u64) -> Vec<(u64, usize)> {
    let mut replay = recording.replay(speed, warm_up_ms * 1_000_000);
    let mut times = Vec::new();
    while let Some(at) = replay.peek() {
        let request = replay.take().unwrap();
        assert_eq!(request.at, at);
        times.push((at / 1_000_000, request.kind));
    }
    assert!(replay.take().is_none());
    times
}

#[test]
fn a_replay_is_the_recording_after_what_comes_before_it_in_a_circle() {
    // Requests are at 0, 150 and 300 ms, so the period is 450 ms.
    let recording = read(ENVOY);
    assert_eq!(times(&recording, 1.0, 0), [(0, 0), (150, 1), (300, 0)]);
    assert_eq!(
        times(&recording, 1.0, 200),
        [(50, 0), (200, 0), (350, 1), (500, 0)]
    );
    assert_eq!(times(&recording, 0.5, 0), [(0, 0), (300, 1), (600, 0)]);
}

#[test]
fn a_faster_replay_repeats_until_it_is_as_long_as_the_recording() {
    let recording = read(ENVOY);
    assert_eq!(
        times(&recording, 2.0, 0),
        [(0, 0), (75, 1), (150, 0), (225, 0), (300, 1), (375, 0)]
    );
    let fast = times(&recording, 100.0, 50);
    assert!(fast.is_sorted_by_key(|(at, _)| *at));
    assert_eq!(fast.iter().filter(|(at, _)| *at >= 50).count(), 300);
    assert_eq!(fast.len(), 333, "50 ms are eleven rounds and a bit");
}

#[test]
fn a_replay_is_no_longer_than_the_longest_recording() {
    let recording = read(ENVOY);
    let problem = |load: f64| {
        let values = vec![load];
        let file = WorkloadFile {
            load: Numbers {
                values,
                is_list: false,
            },
            ..WorkloadFile::default()
        };
        let problem = file.plan(&stage(), Some(&recording)).err()?.pop()?;
        Some((problem.at, problem.found, problem.right))
    };
    assert_eq!(problem(1.69e-7), None);
    let right = "at least 1.69e-7; a replay takes 744 hours at most";
    let right = Right::Text(right.to_owned());
    let expected = ("load".to_owned(), "1e-300".to_owned(), right);
    assert_eq!(problem(1e-300), Some(expected));
}

#[test]
fn a_single_request_is_a_recording_too() {
    let recording = read(&ENVOY.lines().take(1).collect::<String>());
    assert_eq!(times(&recording, 1.0, 1_500), [(500, 0), (1_500, 0)]);
}

/// A log of whole seconds may have one time for all requests.
#[test]
fn requests_of_one_time_arrive_once_a_second() {
    let line = ENVOY.lines().take(1).collect::<String>();
    let recording = read(&format!("{line}\n{line}\n"));
    assert_eq!(recording.per_second(), 2.0);
    let rounds = [(500, 0), (500, 0), (1_500, 0), (1_500, 0)];
    assert_eq!(times(&recording, 1.0, 1_500), rounds);
}

#[test]
fn the_mean_of_many_long_streams_is_theirs() {
    let line = r#"{"start_time":"2026-01-05T10:00:00Z","path":"/q/slow","duration":999999999}"#;
    let recording = read(&format!("{line}\n").repeat(20_000));
    assert!((recording.mean_ms() - 999_999_999.5).abs() < 0.1);
}

#[test]
fn logs_of_different_years_are_no_recording() {
    let old = ENVOY.lines().next().unwrap().replace("2026", "2025");
    let log = format!("{ENVOY}{old}\n");
    let error = Recording::read(log.as_bytes(), &stage()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "8760 hours from the first request to the last; at most 744"
    );
}

/// Any bytes give a recording or an error, never a panic.
#[test]
fn mutilated_logs_never_panic() {
    let json = r#"{"start_time":"2026-01-05T10:00:00.000+02:00","method":"GET","path":"/q/slow","duration":12,"upstream_service_time":"11"}"#;
    let stage = stage();
    for good in [ENVOY, json] {
        for cut in 0..good.len() {
            let mut bytes = good.as_bytes().to_vec();
            let _ = Recording::read(&bytes[..cut], &stage);
            for odd in [b'\0', b'\n', b'"', b'[', b'-', b'9', b'e', b' ', 0xff] {
                bytes[cut] = odd;
                let _ = Recording::read(bytes.as_slice(), &stage);
            }
        }
    }
}
