//! A language model with random weights, as a GGUF file. Its output is noise, but it costs as much
//! as a real model. Its tokens are bytes, so a text has as many tokens as bytes.

use std::io::{self, Write};

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand_distr::{Distribution, Normal};

/// Width of the hidden state.
const WIDTH: usize = 256;
/// Width of the feed-forward layers.
const FEED_FORWARD: usize = 768;
/// Number of layers.
const LAYERS: usize = 4;
/// Attention heads of a layer.
const HEADS: usize = 4;
/// The longest text, in tokens.
const CONTEXT: u32 = 4_096;
/// The tokens before those of the bytes: unknown, begin, end.
const SPECIAL: [(&str, i32); 3] = [("<unk>", 2), ("<s>", 3), ("</s>", 3)];
/// GGUF's type of a token that is a byte.
const BYTE: i32 = 6;
/// The alignment of the weights of a tensor, in bytes.
const ALIGNMENT: usize = 32;

/// A tensor: its dimensions, the innermost first, and its weights.
struct Tensor {
    name: String,
    dimensions: Vec<usize>,
    weights: Vec<f32>,
}

/// A value of the file's metadata.
enum Field<'a> {
    Count(u32),
    Real(f32),
    Text(&'a str),
    Texts(&'a [String]),
    Reals(&'a [f32]),
    Codes(&'a [i32]),
}

/// Writes the model, with the same content each time.
///
/// # Errors
/// If the file can't be written.
pub(super) fn write(out: &mut impl Write) -> io::Result<()> {
    let special = SPECIAL.iter().map(|(text, _)| (*text).to_owned());
    let bytes = (0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>"));
    let tokens: Vec<String> = special.chain(bytes).collect();
    let codes = SPECIAL.iter().map(|&(_, code)| code);
    let codes: Vec<i32> = codes.chain((0..=u8::MAX).map(|_| BYTE)).collect();
    let scores = vec![0.0; tokens.len()];
    let fields = [
        ("general.architecture", Field::Text("llama")),
        ("llama.context_length", Field::Count(CONTEXT)),
        ("llama.embedding_length", count(WIDTH)),
        ("llama.block_count", count(LAYERS)),
        ("llama.feed_forward_length", count(FEED_FORWARD)),
        ("llama.attention.head_count", count(HEADS)),
        ("llama.attention.head_count_kv", count(HEADS)),
        ("llama.attention.layer_norm_rms_epsilon", Field::Real(1e-5)),
        ("llama.rope.dimension_count", count(WIDTH / HEADS)),
        ("llama.vocab_size", count(tokens.len())),
        ("tokenizer.ggml.model", Field::Text("llama")),
        ("tokenizer.ggml.tokens", Field::Texts(&tokens)),
        ("tokenizer.ggml.scores", Field::Reals(&scores)),
        ("tokenizer.ggml.token_type", Field::Codes(&codes)),
        ("tokenizer.ggml.unknown_token_id", Field::Count(0)),
        ("tokenizer.ggml.bos_token_id", Field::Count(1)),
        ("tokenizer.ggml.eos_token_id", Field::Count(2)),
    ];
    let tensors = tensors(tokens.len());
    let mut head = b"GGUF".to_vec();
    head.extend(3_u32.to_le_bytes());
    long(&mut head, tensors.len());
    long(&mut head, fields.len());
    for (name, field) in &fields {
        text(&mut head, name);
        field.write(&mut head);
    }
    let mut offset = 0;
    for tensor in &tensors {
        text(&mut head, &tensor.name);
        head.extend((tensor.dimensions.len() as u32).to_le_bytes());
        for &dimension in &tensor.dimensions {
            long(&mut head, dimension);
        }
        // The code 0 is the type of 32-bit floats.
        head.extend(0_u32.to_le_bytes());
        long(&mut head, offset);
        offset += tensor.bytes();
    }
    head.resize(head.len().next_multiple_of(ALIGNMENT), 0);
    out.write_all(&head)?;
    for tensor in &tensors {
        for weight in &tensor.weights {
            out.write_all(&weight.to_le_bytes())?;
        }
        out.write_all(&vec![0; tensor.bytes() - tensor.weights.len() * 4])?;
    }
    Ok(())
}

fn tensors(vocabulary: usize) -> Vec<Tensor> {
    let mut rng = SmallRng::seed_from_u64(1);
    let Ok(normal) = Normal::new(0.0_f32, 0.02) else {
        return Vec::new();
    };
    let mut random = |name: String, columns: usize, rows: usize| Tensor {
        name,
        dimensions: vec![columns, rows],
        weights: normal.sample_iter(&mut rng).take(columns * rows).collect(),
    };
    let norm = |name: String| Tensor {
        name,
        dimensions: vec![WIDTH],
        weights: vec![1.0; WIDTH],
    };
    let mut output = random("output.weight".to_owned(), WIDTH, vocabulary);
    // Only printable tokens have weights, so the most likely token is always printable. Otherwise
    // the server would hold back the bytes of incomplete characters.
    for (token, row) in output.weights.chunks_mut(WIDTH).enumerate() {
        let byte = token.checked_sub(SPECIAL.len());
        if !byte.is_some_and(|byte| (b'a' as usize..=b'z' as usize).contains(&byte)) {
            row.fill(0.0);
        }
    }
    let mut tensors = vec![
        random("token_embd.weight".to_owned(), WIDTH, vocabulary),
        norm("output_norm.weight".to_owned()),
        output,
    ];
    for layer in 0..LAYERS {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        tensors.push(norm(name("attn_norm")));
        tensors.push(norm(name("ffn_norm")));
        for (part, columns, rows) in [
            ("attn_q", WIDTH, WIDTH),
            ("attn_k", WIDTH, WIDTH),
            ("attn_v", WIDTH, WIDTH),
            ("attn_output", WIDTH, WIDTH),
            ("ffn_gate", WIDTH, FEED_FORWARD),
            ("ffn_up", WIDTH, FEED_FORWARD),
            ("ffn_down", FEED_FORWARD, WIDTH),
        ] {
            tensors.push(random(name(part), columns, rows));
        }
    }
    tensors
}

impl Tensor {
    /// Returns the tensor's size in the file, in bytes.
    fn bytes(&self) -> usize {
        (self.weights.len() * 4).next_multiple_of(ALIGNMENT)
    }
}

impl Field<'_> {
    fn write(&self, head: &mut Vec<u8>) {
        const COUNT: u32 = 4;
        const CODE: u32 = 5;
        const REAL: u32 = 6;
        const TEXT: u32 = 8;
        const ARRAY: u32 = 9;
        let kind = |head: &mut Vec<u8>, kind: u32| head.extend(kind.to_le_bytes());
        let array = |head: &mut Vec<u8>, of: u32, length: usize| {
            kind(head, ARRAY);
            kind(head, of);
            long(head, length);
        };
        match self {
            Self::Count(value) => {
                kind(head, COUNT);
                head.extend(value.to_le_bytes());
            }
            Self::Real(value) => {
                kind(head, REAL);
                head.extend(value.to_le_bytes());
            }
            Self::Text(value) => {
                kind(head, TEXT);
                text(head, value);
            }
            Self::Texts(values) => {
                array(head, TEXT, values.len());
                values.iter().for_each(|value| text(head, value));
            }
            Self::Reals(values) => {
                array(head, REAL, values.len());
                head.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            }
            Self::Codes(values) => {
                array(head, CODE, values.len());
                head.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            }
        }
    }
}

fn count(value: usize) -> Field<'static> {
    Field::Count(value as u32)
}

fn long(head: &mut Vec<u8>, value: usize) {
    head.extend((value as u64).to_le_bytes());
}

fn text(head: &mut Vec<u8>, value: &str) {
    long(head, value.len());
    head.extend(value.as_bytes());
}
