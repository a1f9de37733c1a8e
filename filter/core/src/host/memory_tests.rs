use std::sync::Arc;

use headgate_strategies::host::{HostError, Number, Shared};

use crate::host::MetricKind;
use crate::memory::{Fault, MemoryHost};

#[test]
fn a_name_has_one_id_for_all_workers() {
    let host = MemoryHost::new();
    let a = host.define(MetricKind::Gauge, "g").unwrap();
    assert_eq!(host.define(MetricKind::Gauge, "g"), Ok(a));
    assert!(host.define(MetricKind::Counter, "g").is_err());
    host.add(a, 5).unwrap();
    host.add(a, -2).unwrap();
    assert_eq!(host.get(Number(a.0)), Ok(3));
    assert_eq!(host.number("g"), Ok(Number(a.0)));
    assert_eq!(host.value("g"), Some(3));
    assert!(host.get(Number(9)).is_err());
}

#[test]
fn counters_only_grow_and_histograms_are_write_only() {
    let host = MemoryHost::new();
    let counter = host.define(MetricKind::Counter, "c").unwrap();
    let histogram = host.define(MetricKind::Histogram, "h").unwrap();
    assert!(host.add(counter, -1).is_err());
    host.record(histogram, 7).unwrap();
    host.record(histogram, 8).unwrap();
    assert!(host.get(Number(histogram.0)).is_err());
    assert_eq!(host.recorded("h"), Some((2, 15)));
}

#[test]
fn of_two_stores_on_one_version_the_second_conflicts() {
    let host = MemoryHost::new();
    assert_eq!(host.load("k"), Ok(None));
    host.store("k", b"a", None).unwrap();
    assert_eq!(host.store("k", b"b", None), Err(HostError::Conflict));
    let (_, version) = host.load("k").unwrap().unwrap();
    host.store("k", b"c", Some(version)).unwrap();
    assert_eq!(
        host.store("k", b"d", Some(version)),
        Err(HostError::Conflict)
    );
    assert_eq!(host.load("k").unwrap().unwrap().0, b"c");
}

#[test]
fn compare_and_swap_loses_no_update_between_threads() {
    let host = Arc::new(MemoryHost::new());
    host.store("n", &0_u32.to_le_bytes(), None).unwrap();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let host = Arc::clone(&host);
            std::thread::spawn(move || {
                let mut stored = 0;
                while stored < 500 {
                    let (bytes, version) = host.load("n").unwrap().unwrap();
                    let n = u32::from_le_bytes(bytes.try_into().unwrap()) + 1;
                    stored += u32::from(host.store("n", &n.to_le_bytes(), Some(version)).is_ok());
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(host.load("n").unwrap().unwrap().0, 2_000_u32.to_le_bytes());
}

#[test]
fn wake_ups_are_counted_per_worker_and_fail_for_the_gone() {
    let host = MemoryHost::new();
    host.wake(1).unwrap();
    host.wake(1).unwrap();
    assert_eq!(
        (host.take_wakes(0), host.take_wakes(1), host.take_wakes(1)),
        (0, 2, 0)
    );
    host.set_gone(1, true);
    assert!(host.wake(1).is_err());
}

#[test]
fn injected_faults_happen_as_often_as_ordered() {
    let host = MemoryHost::new();
    host.inject(Fault::StoreConflicts, 2);
    assert_eq!(host.store("k", b"", None), Err(HostError::Conflict));
    assert_eq!(host.store("k", b"", None), Err(HostError::Conflict));
    host.store("k", b"", None).unwrap();
    host.inject(Fault::LoadFails, 1);
    assert!(host.load("k").is_err());
    assert!(host.load("k").is_ok());
    host.inject(Fault::WakeIsLost, 1);
    host.wake(0).unwrap();
    assert_eq!(host.take_wakes(0), 0);
}
