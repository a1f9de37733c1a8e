//! The output tokens of a response, counted as its body passes.
//!
//! Servers of language models send one token, or a few, in each server-sent event. So in a body of
//! the type `text/event-stream` each event with data counts as a token, except `[DONE]`, which
//! marks the end. For a compressed body or a body of another type, the parts in which the body
//! arrives are counted. Each byte is read once, and none is stored.

use std::time::Duration;

use headgate_strategies::host::HostError;
use headgate_strategies::time::Instant;

use super::{Map, Stream};
use crate::stage::Outcome;

const EVENT_STREAM: &[u8] = b"text/event-stream";
/// The beginning of a line with data in an event.
const DATA: &[u8] = b"data:";
/// The data of the last event.
const DONE: &[u8] = b"[DONE]";

/// The tokens of one response.
#[derive(Debug)]
pub(super) struct Tokens {
    /// The position in the current event, or `None` if parts of the body are counted.
    events: Option<Events>,
    count: u32,
    /// The arrival of the first token.
    first: Option<Instant>,
}

impl Tokens {
    /// Starts to count the tokens of a response when its headers arrive.
    pub(super) fn of_response(stream: &impl Stream) -> Self {
        let header = |name| stream.header(Map::Response, name).ok().flatten();
        let has_events = header("content-type").is_some_and(|value| {
            (value.get(..EVENT_STREAM.len())).is_some_and(|v| v.eq_ignore_ascii_case(EVENT_STREAM))
        });
        let events = has_events && header("content-encoding").is_none();
        Self {
            events: events.then(Events::default),
            count: 0,
            first: None,
        }
    }

    /// Counts the tokens in the current part of the body.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails.
    pub(super) fn read(&mut self, stream: &impl Stream) -> Result<(), HostError> {
        let (mut found, mut size) = (0, 0);
        stream.response_body(&mut |bytes| {
            size += bytes.len();
            found += self.events.as_mut().map_or(0, |events| events.read(bytes));
        })?;
        if self.events.is_none() && size > 0 {
            found = 1;
        }
        if found > 0 && self.first.is_none() {
            self.first = Some(stream.now()?);
        }
        self.count = self.count.saturating_add(found);
        Ok(())
    }

    /// Returns the number of tokens so far.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Whether tokens are counted, rather than parts of the body.
    pub(super) fn counts_each(&self) -> bool {
        self.events.is_some()
    }

    /// Returns the time per output token of a response that ends at `now`, or `None` without a gap
    /// between tokens. The result is the time since the first token divided by the number of gaps.
    /// If the client left, the time since the last token counts as one more gap, so one token
    /// suffices. Otherwise two tokens are needed.
    pub(super) fn time(&self, now: Instant, outcome: Outcome) -> Option<Duration> {
        let gaps = match outcome {
            Outcome::Abandoned => self.count,
            _ => self.count.saturating_sub(1),
        };
        now.since(self.first?).checked_div(gaps)
    }
}

/// A position in a stream of events, as the HTML standard defines their format.
#[derive(Debug, Default)]
struct Events {
    at: At,
    /// Whether the last byte was a carriage return. A line feed after it belongs to the same line
    /// end.
    after_return: bool,
    /// Whether the current event has been counted.
    counted: bool,
}

/// A position in a line.
#[derive(Debug, Clone, Copy)]
enum At {
    /// The line so far consists of this many bytes of [`DATA`].
    Name(usize),
    /// Directly after [`DATA`]. A space here isn't part of the data.
    Colon,
    /// The data so far consists of this many bytes of [`DONE`].
    Value(usize),
    /// In the rest of a line, which has no further meaning.
    Rest,
}

impl Default for At {
    fn default() -> Self {
        Self::Name(0)
    }
}

impl Events {
    /// Reads the next bytes of the body. Returns the number of tokens in them.
    fn read(&mut self, mut bytes: &[u8]) -> u32 {
        let mut found = 0;
        while let Some((&byte, rest)) = bytes.split_first() {
            bytes = rest;
            let after_return = std::mem::replace(&mut self.after_return, byte == b'\r');
            if is_end(byte) {
                if !(after_return && byte == b'\n') {
                    found += self.end_of_line();
                }
                continue;
            }
            self.at = match (self.at, byte) {
                (At::Name(n), _) if DATA.get(n) == Some(&byte) => match DATA.len() - n {
                    1 => At::Colon,
                    _ => At::Name(n + 1),
                },
                (At::Colon, b' ') => At::Value(0),
                (At::Colon, b'[') => At::Value(1),
                (At::Value(n), _) if DONE.get(n) == Some(&byte) => At::Value(n + 1),
                (At::Colon | At::Value(_), _) => {
                    found += self.token();
                    At::Rest
                }
                (At::Name(_) | At::Rest, _) => {
                    let end = bytes.iter().position(|byte| is_end(*byte));
                    bytes = bytes.get(end.unwrap_or(bytes.len())..).unwrap_or_default();
                    At::Rest
                }
            };
        }
        found
    }

    fn end_of_line(&mut self) -> u32 {
        match std::mem::take(&mut self.at) {
            // An empty line ends the event.
            At::Name(0) => {
                self.counted = false;
                0
            }
            // The data is only the beginning of [`DONE`], so it is a token.
            At::Value(n) if (1..DONE.len()).contains(&n) => self.token(),
            At::Name(_) | At::Colon | At::Value(_) | At::Rest => 0,
        }
    }

    /// Counts the current event, unless it was counted before. Returns the number of new tokens.
    fn token(&mut self) -> u32 {
        u32::from(!std::mem::replace(&mut self.counted, true))
    }
}

fn is_end(byte: u8) -> bool {
    matches!(byte, b'\n' | b'\r')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::memory::{MemoryStream, pairs};

    fn count(parts: &[&[u8]]) -> u32 {
        let mut events = Events::default();
        parts.iter().map(|part| events.read(part)).sum()
    }

    #[test]
    fn an_event_with_data_is_a_token() {
        for (body, expected) in [
            ("", 0),
            ("data: {\"a\":1}\n\n", 1),
            ("data: a\n\ndata: b\n\n", 2),
            ("data:a\r\n\r\ndata:b\r\n\r\n", 2),
            ("data:a\r\rdata:b\r\r", 2),
            // Several lines of data belong to one event.
            ("data: a\ndata: b\n\n", 1),
            ("data: a\r\ndata: b\r\n\r\n", 1),
            ("data: a\rdata: b\r\r", 1),
            ("event: delta\nid: 7\ndata: a\n\n", 1),
            // These are other fields, comments, and events without data.
            (": ping\n\nevent: ping\n\nretry: 10\n\n", 0),
            ("data:\n\ndata: \n\ndata\n\n", 0),
            ("data:\ndata: a\n\n", 1),
            ("database: a\n\n data: a\n\nDATA: a\n\n", 0),
            // These are the mark of the end, and data that only resembles it.
            ("data: [DONE]\n\n", 0),
            ("data:[DONE]\r\n\r\n", 0),
            ("data: a\n\ndata: [DONE]\n\n", 1),
            ("data: [DON\n\ndata: [\n\ndata: [DONE]!\n\ndata: [1]\n\n", 4),
            ("data:  [DONE]\n\n", 1),
            // An event that is cut off counts, too.
            ("data: a\n\ndata: b", 2),
        ] {
            assert_eq!(count(&[body.as_bytes()]), expected, "{body:?}");
        }
    }

    proptest! {
        #[test]
        fn any_division_into_parts_gives_the_same_count(
            lines in prop::collection::vec(
                (
                    prop::sample::select(vec![
                        "", "", "data: a", "data:b", "data: [DONE]", "data:[DONE]", "data:", "data",
                        ": c", "event: e", "data: [D", "data:  x", "data: data: a",
                    ]),
                    prop::sample::select(vec!["\n", "\r\n", "\r"]),
                ),
                0..20,
            ),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let body: String = lines.iter().flat_map(|(line, end)| [*line, *end]).collect();
            let body = body.as_bytes();
            let mut cuts: Vec<usize> = cuts.iter().map(|at| at.index(body.len() + 1)).collect();
            cuts.extend([0, body.len()]);
            cuts.sort_unstable();
            let parts: Vec<&[u8]> = cuts.windows(2).map(|cut| &body[cut[0]..cut[1]]).collect();
            let bytes: Vec<&[u8]> = body.chunks(1).collect();
            prop_assert_eq!(count(&parts), count(&[body]));
            prop_assert_eq!(count(&bytes), count(&[body]));
        }
    }

    /// Returns the tokens of a response with these headers, whose body arrives in these parts, 10
    /// ms apart.
    fn response(headers: &[(&str, &str)], parts: &[&str]) -> Tokens {
        let stream = MemoryStream::default();
        *stream.response.borrow_mut() = pairs(headers);
        let mut tokens = Tokens::of_response(&stream);
        for (at, part) in parts.iter().enumerate() {
            stream.now.set(Some(ms(10 * at as u64)));
            *stream.body.borrow_mut() = part.as_bytes().to_vec();
            tokens.read(&stream).unwrap();
        }
        tokens
    }

    fn ms(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn events_or_parts_are_counted_from_the_first_one() {
        let parts = [
            ": ping\n\n",
            "data: a\n\nda",
            "ta: b\n\n",
            "",
            "data: c\n\n",
        ];
        let events = ("Content-Type", "text/event-stream");
        let of = |headers: &[(&str, &str)]| {
            let headers: Vec<_> = headers
                .iter()
                .map(|(n, v)| (n.to_lowercase(), *v))
                .collect();
            let headers: Vec<_> = headers.iter().map(|(n, v)| (n.as_str(), *v)).collect();
            let tokens = response(&headers, &parts);
            (tokens.count, tokens.first.unwrap())
        };
        assert_eq!(of(&[events]), (3, ms(10)));
        assert_eq!(
            of(&[("content-type", "Text/Event-Stream; charset=utf-8")]),
            (3, ms(10))
        );
        // In other responses, parts that aren't empty are counted.
        assert_eq!(of(&[]), (4, ms(0)));
        assert_eq!(of(&[("content-type", "application/grpc")]), (4, ms(0)));
        assert_eq!(of(&[events, ("content-encoding", "gzip")]), (4, ms(0)));
    }

    #[test]
    fn the_time_is_from_the_first_token_to_the_end_over_the_others() {
        let time = |parts: &[&str], end, outcome| response(&[], parts).time(ms(end), outcome);
        let tokens = |n: u64| Some(Duration::from_millis(n));
        let completed = Outcome::Completed;
        assert_eq!(time(&["a", "b", "c"], 60, completed), tokens(30));
        assert_eq!(time(&["a"], 60, completed), None);
        assert_eq!(time(&[], 60, completed), None);
        // The client leaves while the fourth token is due.
        assert_eq!(time(&["a", "b", "c"], 60, Outcome::Abandoned), tokens(20));
        assert_eq!(time(&["a"], 60, Outcome::Abandoned), tokens(60));
    }
}
