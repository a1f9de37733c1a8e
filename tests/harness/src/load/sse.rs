//! Server-sent events of an LLM server: the times of the first and the last token.

use std::time::Duration;

use serde_json::Value;

use super::record::Stream;

/// The tokens of one streamed answer of OpenAI's completions API.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    /// The current line, whose end has not arrived.
    line: Vec<u8>,
    /// The tokens so far.
    pub(super) stream: Option<Stream>,
}

impl Tokens {
    /// Reads the next bytes of the body, which arrived `after` the request fell due. A line may
    /// span several calls.
    pub(super) fn read(&mut self, bytes: &[u8], after: Duration) {
        for &byte in bytes {
            if byte != b'\n' {
                self.line.push(byte);
                continue;
            }
            if is_token(&self.line) {
                let stream = self.stream.get_or_insert(Stream {
                    first: after,
                    last: after,
                    tokens: 0,
                });
                stream.last = after;
                stream.tokens += 1;
            }
            self.line.clear();
        }
    }
}

/// Whether a line is an event with text. Other lines are comments that keep a connection open, a
/// first event of some servers that has only a role, and last events with the usage or without JSON
/// (`[DONE]`).
fn is_token(line: &[u8]) -> bool {
    let Some(data) = line.strip_prefix(b"data:") else {
        return false;
    };
    let event: Value = serde_json::from_slice(data).unwrap_or_default();
    let choice = &event["choices"][0];
    let texts = [&choice["text"], &choice["delta"]["content"]];
    texts
        .iter()
        .any(|text| text.as_str().is_some_and(|text| !text.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = concat!(
        ": ping\r\n\r\n",
        "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":null}}]}\r\n\r\n",
        "data: {\"choices\":[{\"text\":\"a\"}]}\n\n",
        "data:{\"choices\":[{\"delta\":{\"content\":\"b\\n\"}}]}\n\n",
        "event: x\ndata: {\"choices\":[{\"text\":\"data: c\"}]}\n\n",
        "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n",
        "data: {\"choices\":[],\"usage\":{\"completion_tokens\":3}}\n\n",
        "data: [DONE]\n\n",
    );

    #[test]
    fn only_events_with_text_are_tokens_however_the_body_is_cut() {
        let end_of = |text: &str| {
            let from = STREAM.find(text).unwrap();
            from + STREAM[from..].find('\n').unwrap()
        };
        let (first, last) = (end_of("\"a\""), end_of("data: c"));
        for size in 1..=STREAM.len() {
            let ms = |piece: usize| Duration::from_millis(piece as u64);
            let mut tokens = Tokens::default();
            for (piece, bytes) in STREAM.as_bytes().chunks(size).enumerate() {
                tokens.read(bytes, ms(piece));
            }
            let expected = Stream {
                first: ms(first / size),
                last: ms(last / size),
                tokens: 3,
            };
            assert_eq!(tokens.stream, Some(expected), "in pieces of {size}");
            assert_eq!(expected.per_token(), (expected.last - expected.first) / 2);
        }
    }

    #[test]
    fn an_answer_without_events_has_no_tokens() {
        let mut tokens = Tokens::default();
        tokens.read(b"{\"error\":{\"message\":\"data: no\"}}\n", Duration::ZERO);
        assert_eq!(tokens.stream, None);
    }
}
