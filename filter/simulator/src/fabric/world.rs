//! One run of the network: calls are made, admitted to a class and cut into packets, which are
//! queued, sent and acknowledged.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use headgate_admission::{ChannelLaw, Completion, Distributed, Incast, Limits, Misses, Settings};
use headgate_strategies::request::ClassId;
use headgate_strategies::rng::Rng;
use headgate_strategies::time::{Instant, nanos};

use super::port::Port;
use super::seen::Seen;
use super::traffic::{Arrival, Traffic};
use super::transport::{Channel, TIMEOUT};
use super::{MICROSECOND, Method, Setup};
use crate::lanes::Lanes;
use crate::simulation::SimulationError;

/// The time per byte of a 100 Gb/s link, ps.
const PS_PER_BYTE: u64 = 80;
/// The propagation delay of a link, ps.
const PROPAGATION: u64 = MICROSECOND / 5;
/// The size of a packet with its header, bytes.
const PACKET: u32 = 5_120;
/// The size of a packet's header, bytes. An acknowledgement is a header.
const HEADER: u32 = 40;

/// Runs `setup` for `length` with `method`. Calls made before `counts_from` have no effect on the
/// latencies.
///
/// # Errors
/// [`SimulationError`] if targets or a weight are invalid for the algorithm.
pub fn run(
    setup: &Setup,
    method: Method,
    length: Duration,
    counts_from: Duration,
    seed: u64,
) -> Result<Seen, SimulationError> {
    let mut world = World::new(setup, method, length, counts_from, seed)?;
    world.run(picos(length));
    Ok(world.seen)
}

/// A packet or an acknowledgement in the network.
#[derive(Debug, Clone, Copy)]
struct InFlight {
    source: u16,
    destination: u16,
    class: u8,
    acknowledges: bool,
    /// The number of the call in its channel, and whether the packet is the call's last.
    call: (u64, bool),
    sent: u64,
    bytes: u32,
}

#[derive(Debug, Clone, Copy)]
enum Event {
    /// The packet reaches the switch.
    Switch(InFlight),
    /// The acknowledgement reaches the sender of the packet.
    Acknowledged(InFlight),
    TimedOut(InFlight),
}

/// The algorithm, with the state of all hosts.
#[derive(Debug)]
enum Admission {
    None,
    Distributed(Distributed<(u16, u16)>),
    Misses {
        all: Misses<(u16, u16)>,
        by_sender: bool,
    },
    Incast(Incast<u16, u16>),
}

#[derive(Debug)]
struct World {
    hosts: usize,
    classes: usize,
    call_bytes: u32,
    /// The number of packets of a call.
    packets: u32,
    /// The size of a call's last packet, bytes.
    last_bytes: u32,
    traffic: Traffic,
    admission: Admission,
    luck: Rng,
    channels: Vec<Channel>,
    /// Ports by destination.
    ports: Vec<Port<InFlight>>,
    /// The ends of the ports' transmissions, with the ports.
    sending: BinaryHeap<Reverse<(u64, u16)>>,
    events: Lanes<u64, Event>,
    seen: Seen,
}

impl World {
    fn new(
        setup: &Setup,
        method: Method,
        length: Duration,
        counts_from: Duration,
        seed: u64,
    ) -> Result<Self, SimulationError> {
        let (hosts, classes) = (usize::from(setup.hosts), setup.weights.len());
        let payload = PACKET - HEADER;
        let packets = setup.call_bytes.div_ceil(payload).max(1);
        let last_bytes = setup.call_bytes - (packets - 1) * payload + HEADER;
        let link = u64::from((packets - 1) * PACKET + last_bytes) * PS_PER_BYTE;
        let mut seeds = Rng::new(seed);
        Ok(Self {
            hosts,
            classes,
            call_bytes: setup.call_bytes,
            packets,
            last_bytes,
            traffic: Traffic::new(setup, link, seeds.next_u64()),
            admission: Admission::new(setup, method)?,
            luck: Rng::new(seeds.next_u64()),
            channels: vec![Channel::new(); hosts * hosts * classes],
            ports: vec![Port::new(PS_PER_BYTE, &setup.weights, setup.buffer_bytes); hosts],
            sending: BinaryHeap::new(),
            events: Lanes::new(u64::MAX),
            seen: Seen::new(
                hosts,
                classes,
                picos(setup.interval),
                picos(length),
                picos(counts_from),
            )?,
        })
    }

    fn after(&mut self, now: u64, delay: u64, event: Event) {
        self.events.push(delay, now + delay, event);
    }

    fn run(&mut self, until: u64) {
        loop {
            let call = self.traffic.peek().unwrap_or(u64::MAX);
            let sent = self.sending.peek().map_or(u64::MAX, |next| next.0.0);
            let event = self.events.peek();
            let next = call.min(sent).min(event);
            if next >= until {
                return;
            }
            if next == sent {
                if let Some(Reverse((now, port))) = self.sending.pop() {
                    self.sent(now, port);
                }
            } else if next == event {
                if let Some((now, event)) = self.events.next() {
                    self.happens(now, event);
                }
            } else if let Some(call) = self.traffic.next() {
                self.issue(call);
            }
        }
    }

    fn channel(&self, source: u16, destination: u16, class: u8) -> usize {
        let pair = usize::from(source) * self.hosts + usize::from(destination);
        pair * self.classes + usize::from(class)
    }

    fn issue(&mut self, call: Arrival) {
        let Arrival {
            at,
            source,
            destination,
            wanted,
        } = call;
        let class = self
            .admission
            .class_for(at, (source, destination), wanted, &mut self.luck);
        self.seen.issued(at, source, wanted, class);
        let channel = self.channel(source, destination, class);
        self.channels[channel].issue(at, self.packets);
        self.send(at, source, destination, class);
    }

    /// Sends the packets for which the window has room.
    fn send(&mut self, now: u64, source: u16, destination: u16, class: u8) {
        let channel = self.channel(source, destination, class);
        while let Some(call) = self.channels[channel].send() {
            let packet = InFlight {
                source,
                destination,
                class,
                acknowledges: false,
                call,
                sent: now,
                bytes: if call.1 { self.last_bytes } else { PACKET },
            };
            self.after(now, PROPAGATION, Event::Switch(packet));
        }
    }

    fn happens(&mut self, now: u64, event: Event) {
        match event {
            Event::Switch(packet) => {
                let to = if packet.acknowledges {
                    packet.source
                } else {
                    packet.destination
                };
                let class = usize::from(packet.class);
                if !self.ports[usize::from(to)].enqueue(now, class, packet.bytes, packet) {
                    self.seen.lost += 1;
                    self.after(now, TIMEOUT, Event::TimedOut(packet));
                }
                self.start(now, to);
            }
            Event::Acknowledged(packet) => self.acknowledged(now, packet),
            Event::TimedOut(packet) => {
                let channel = self.channel(packet.source, packet.destination, packet.class);
                self.channels[channel].timed_out(now, packet.call);
                self.send(now, packet.source, packet.destination, packet.class);
            }
        }
    }

    /// Starts a port's next transmission, if the port is free and a packet waits.
    fn start(&mut self, now: u64, port: u16) {
        if let Some(takes) = self.ports[usize::from(port)].send() {
            self.sending.push(Reverse((now + takes, port)));
        }
    }

    /// Ends a port's transmission. The packet reaches the host, which reads it at the speed of the
    /// link.
    fn sent(&mut self, now: u64, port: u16) {
        if let Some(packet) = self.ports[usize::from(port)].sent() {
            let read = u64::from(packet.bytes) * PS_PER_BYTE;
            if packet.acknowledges {
                let event = Event::Acknowledged(packet);
                self.after(now, PROPAGATION + read, event);
            } else {
                let answer = InFlight {
                    acknowledges: true,
                    bytes: HEADER,
                    ..packet
                };
                let event = Event::Switch(answer);
                self.after(now, 2 * PROPAGATION + read, event);
            }
        }
        self.start(now, port);
    }

    fn acknowledged(&mut self, now: u64, packet: InFlight) {
        let InFlight {
            source,
            destination,
            class,
            ..
        } = packet;
        let channel = self.channel(source, destination, class);
        let issued = self.channels[channel].acknowledged(now, packet.call.0, now - packet.sent);
        if let Some(issued) = issued {
            self.seen
                .completed(now, issued, source, class, self.call_bytes);
            let call = Completion {
                class: ClassId(class),
                latency: Duration::from_nanos((now - issued) * 1_000 / MICROSECOND),
                size: self.packets,
            };
            self.admission.completed(now, (source, destination), &call);
        }
        self.send(now, source, destination, class);
    }
}

impl Admission {
    fn new(setup: &Setup, method: Method) -> Result<Self, SimulationError> {
        let settings = Settings {
            percentile: setup.percentile,
            ..Settings::new(setup.targets_us.clone())
        };
        let law = ChannelLaw::try_from(settings)?;
        let hosts = usize::from(setup.hosts);
        let limits = Limits {
            channels: 4 * hosts * hosts * setup.weights.len(),
            ..Limits::default()
        };
        Ok(match method {
            Method::None => Self::None,
            Method::Distributed => Self::Distributed(Distributed::new(law, limits)),
            Method::Misses {
                period,
                allowed,
                scope,
                by_sender,
            } => Self::Misses {
                all: Misses::new(law, allowed, period, scope, limits),
                by_sender,
            },
            Method::Incast { past, scope } => Self::Incast(Incast::new(law, past, scope, limits)?),
        })
    }

    fn class_for(&mut self, now: u64, pair: (u16, u16), wanted: u8, luck: &mut Rng) -> u8 {
        let (now, asked) = (instant(now), ClassId(wanted));
        let ran = match self {
            Self::None => asked,
            Self::Distributed(all) => all.class_for(now, pair, asked, luck),
            Self::Misses { all, by_sender } => {
                all.class_for(now, receiver(pair, *by_sender), asked)
            }
            Self::Incast(all) => all.class_for(now, pair.0, pair.1, asked, luck),
        };
        ran.0
    }

    fn completed(&mut self, now: u64, pair: (u16, u16), call: &Completion) {
        // The round-trip time of a packet and its acknowledgement in an empty network.
        const ROUND_TRIP: u64 = 4 * PROPAGATION + 2 * (PACKET + HEADER) as u64 * PS_PER_BYTE;
        let now = instant(now);
        match self {
            Self::None => {}
            Self::Distributed(all) => all.completed(now, pair, call),
            Self::Misses { all, by_sender } => {
                all.completed(now, receiver(pair, *by_sender), call);
            }
            Self::Incast(all) => {
                let round_trip = Duration::from_nanos(ROUND_TRIP * 1_000 / MICROSECOND);
                all.completed(now, pair.0, pair.1, call, round_trip);
            }
        }
    }
}

/// Returns the key of a receiver's misses: one key for all senders, or one for each sender.
const fn receiver(pair: (u16, u16), by_sender: bool) -> (u16, u16) {
    if by_sender { pair } else { (0, pair.1) }
}

fn instant(ps: u64) -> Instant {
    Instant::from_nanos(ps * 1_000 / MICROSECOND)
}

fn picos(span: Duration) -> u64 {
    nanos(span) * MICROSECOND / 1_000
}

#[cfg(test)]
mod tests {
    use headgate_admission::Scope;

    use super::super::Pattern;
    use super::*;
    use crate::samples::fabric::{all_to_all, incast};

    fn run_for(setup: &Setup, method: Method, ms: u64) -> Seen {
        run(setup, method, Duration::from_millis(ms), Duration::ZERO, 1).unwrap()
    }

    #[test]
    fn method_2_without_a_past_is_the_baseline() {
        for (setup, ms) in [(&all_to_all(), 20), (&incast(), 100)] {
            let baseline = run_for(setup, Method::Distributed, ms);
            let downgraded = baseline
                .samples
                .iter()
                .flatten()
                .any(|s| s.admitted < s.asked);
            assert!(downgraded, "nothing was decided");
            let incast = |past, scope| run_for(setup, Method::Incast { past, scope }, ms);
            assert_eq!(incast(0.0, Scope::Destination), baseline);
            assert_eq!(incast(0.0, Scope::Class), baseline);
            assert_ne!(incast(0.5, Scope::Destination), baseline);
        }
    }

    #[test]
    fn an_alone_call_takes_the_time_of_its_packets() {
        let seldom = Setup {
            pattern: Pattern::Incast { load: 0.001 },
            ..incast()
        };
        let seen = run_for(&seldom, Method::None, 200);
        // With an open window, the latency is the sum of a link's delay, six full packets at the
        // port, another link's delay, the time in which the host reads the sixth packet (the
        // seventh is smaller and was read before), and the way back with 3.2 ns twice.
        let least = 4.0 * 0.2 + 7.0 * 0.409_6 + 2.0 * 0.003_2;
        let median = seen.latency_us(0, 0.5).unwrap();
        assert!((median - least).abs() < 0.01, "{median} instead of {least}");
        assert_eq!(seen.lost, 0);
        assert!(seen.issued - seen.completed <= 1);
    }

    #[test]
    fn ports_lose_what_windows_make_up_for() {
        let narrow = Setup {
            buffer_bytes: 20_000,
            ..incast()
        };
        let seen = run_for(&narrow, Method::None, 100);
        assert!(seen.lost > 0);
        let bytes: u64 = seen.samples.iter().flatten().map(|s| s.bytes).sum();
        assert!(bytes > 0 && seen.completed < seen.issued);
    }
}
