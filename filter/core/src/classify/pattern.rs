//! Regular expressions of matches, compiled to DFAs.
//!
//! A DFA looks at each byte of a value once, whatever the expression is. So a comparison takes
//! about 2 ns for each byte (4 ns in Wasm), and no expression makes it slower. The price is paid
//! when a policy is compiled: the size of a DFA and the work for it are exponential in the
//! expression's length in the worst case. Both have limits, for each expression and for all of a
//! policy together ([`Budget`]).
//!
//! Expressions match bytes. `\d`, `\w`, `\s`, `\b` and `(?i)` are those of ASCII, and `.` is one
//! byte.

use std::convert::Infallible;
use std::fmt;

use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::nfa::thompson::{self, NFA, WhichCaptures};
use regex_automata::{Anchored, Input, MatchKind};
use regex_syntax::ast::{self, Ast, Flag};
use regex_syntax::hir::{self, Hir, Look, translate::TranslatorBuilder};

/// Longest regular expression, bytes.
const MAX_PATTERN: usize = 1024;

/// Longest value that is compared with a regular expression, bytes. A longer value doesn't match.
/// Envoy accepts paths of 60 KiB.
pub(super) const MAX_VALUE: usize = 4 * 1024;

/// Deepest nesting of groups and repetitions.
const MAX_NESTING: u32 = 50;

/// Largest NFA, bytes. The DFA is built from it. Counted repetitions multiply its size.
const MAX_NFA: usize = 64 * 1024;

/// Largest DFA of one expression, bytes. Every worker has a copy.
const MAX_DFA: usize = 64 * 1024;

/// Largest set of NFA states that the construction of a DFA remembers, bytes.
const MAX_DETERMINIZED: usize = 256 * 1024;

/// Largest sum of a policy's DFAs, each rounded up to [`PAGE`], bytes.
pub(super) const MAX_DFAS: usize = 1024 * 1024;

/// The least that an expression counts in [`MAX_DFAS`], bytes. So a policy has at most 256
/// expressions, whose comparisons with a value of [`MAX_VALUE`] take about 2 ms (5 ms in Wasm).
const PAGE: usize = 4 * 1024;

/// Largest work of the construction of a policy's DFAs: the sum of each DFA's transitions times its
/// NFA's states. The construction visits all these states for a transition at most.
const MAX_WORK: usize = 8_000_000;

const TOO_LARGE: &str = "too large when compiled; use smaller repetition counts";
const ASCII_CLASSES: &str = "a class of characters beyond ASCII; write alternatives, such as (é|è)";
const NO_UNICODE_MODE: &str = "the flag u is not supported";

/// The reason why an expression is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// The expression can't be used, for this reason.
    Unusable(String),
    /// The policy's expressions up to this one exceed its budget, which takes none from here on.
    TooMany,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unusable(reason) => f.write_str(reason),
            Self::TooMany => f.write_str("too large when compiled, with the policy's others"),
        }
    }
}

/// The resources that are left for further regular expressions of a policy.
#[derive(Debug)]
pub struct Budget {
    /// The factor of all limits of compiled expressions.
    scale: usize,
    /// The size of further DFAs, bytes.
    bytes: usize,
    /// As [`MAX_WORK`].
    work: usize,
    is_exceeded: bool,
}

impl Budget {
    /// Returns the budget by which a policy is accepted.
    pub const fn of_accepted() -> Self {
        Self::scaled(1)
    }

    /// Returns the budget of a policy in a filter. It is twice the one by which policies are
    /// accepted, so that a filter with another version of the compiler takes each of them, too.
    pub(super) const fn of_running() -> Self {
        Self::scaled(2)
    }

    const fn scaled(scale: usize) -> Self {
        Self {
            scale,
            bytes: scale * MAX_DFAS,
            work: scale * MAX_WORK,
            is_exceeded: false,
        }
    }

    /// Checks that `pattern` can be used as a regular expression in a match, and takes its cost
    /// from the budget.
    ///
    /// # Errors
    /// [`Refused`]. A pattern has the syntax of the `regex` crate, without Unicode and at most 1024
    /// bytes. Its NFA and its DFA have at most 64 KiB each.
    pub fn check(&mut self, pattern: &str) -> Result<(), Refused> {
        Pattern::new(pattern, self).map(drop)
    }

    /// Whether an expression was refused as [`Refused::TooMany`].
    pub const fn is_exceeded(&self) -> bool {
        self.is_exceeded
    }

    fn nfa(&mut self, hir: &Hir) -> Result<NFA, Refused> {
        let limit = self.scale * MAX_NFA;
        let config = thompson::Config::new()
            .utf8(false)
            .which_captures(WhichCaptures::None)
            .nfa_size_limit(Some(limit));
        let mut compiler = thompson::Compiler::new();
        let nfa = compiler.configure(config).build_from_hir(hir);
        nfa.map_err(|error| {
            // Otherwise a policy of many such expressions would be compiled for long.
            self.work = self.work.saturating_sub(limit);
            Refused::Unusable(match error.size_limit() {
                Some(_) => TOO_LARGE.to_owned(),
                None => error.to_string(),
            })
        })
    }

    fn dfa(&mut self, nfa: &NFA) -> Result<Dfa, Refused> {
        let states = nfa.states().len().max(1);
        let within = |work: usize| work.saturating_mul(TRANSITION) / states;
        let alone = (self.scale * MAX_DFA).min(within(self.scale * MAX_WORK));
        let left = self.bytes.min(within(self.work));
        let limit = alone.min(left);
        let config = dense::Config::new()
            .accelerate(false)
            .match_kind(MatchKind::All)
            .start_kind(StartKind::Anchored)
            .dfa_size_limit(Some(limit))
            .determinize_size_limit(Some(self.scale * MAX_DETERMINIZED));
        let mut builder = dense::Builder::new();
        let built = builder.configure(config).build_from_nfa(nfa);
        let size = built.as_ref().map_or(limit, dense::DFA::memory_usage);
        self.work = (self.work).saturating_sub((size / TRANSITION).saturating_mul(states));
        match built {
            Ok(dfa) if size <= limit => {
                self.bytes = self.bytes.saturating_sub(size.next_multiple_of(PAGE));
                Ok(dfa)
            }
            Err(error) if !error.is_size_limit_exceeded() => {
                Err(Refused::Unusable(error.to_string()))
            }
            _ if left < alone => {
                self.is_exceeded = true;
                Err(Refused::TooMany)
            }
            _ => Err(Refused::Unusable(TOO_LARGE.to_owned())),
        }
    }
}

/// The size of a transition in a DFA, bytes.
const TRANSITION: usize = size_of::<u32>();

type Dfa = dense::DFA<Vec<u32>>;

/// A compiled regular expression.
#[derive(Debug)]
pub(super) struct Pattern(Box<Dfa>);

impl Pattern {
    /// Compiles `pattern`, within `budget`.
    pub(super) fn new(pattern: &str, budget: &mut Budget) -> Result<Self, Refused> {
        budget.is_exceeded |= budget.work == 0;
        if budget.is_exceeded {
            return Err(Refused::TooMany);
        }
        let hir = parse(pattern).map_err(Refused::Unusable)?;
        let nfa = budget.nfa(&hir)?;
        let dfa = budget.dfa(&nfa)?;
        // The copy has no spare capacity.
        Ok(Self(Box::new(dfa.to_owned())))
    }

    /// Whether the expression matches the whole `value`. A value that isn't UTF-8 doesn't match.
    pub(super) fn matches(&self, value: &[u8]) -> bool {
        let input = Input::new(value).anchored(Anchored::Yes);
        value.len() <= MAX_VALUE
            && self.0.try_search_fwd(&input).is_ok_and(|end| end.is_some())
            && std::str::from_utf8(value).is_ok()
    }

    #[cfg(test)]
    pub(super) fn size(&self) -> usize {
        self.0.memory_usage()
    }
}

/// Returns the meaning of `pattern`, which matches only up to the end of a value.
fn parse(pattern: &str) -> Result<Hir, String> {
    if pattern.len() > MAX_PATTERN {
        let length = pattern.len();
        return Err(format!("{length} bytes long; at most {MAX_PATTERN}"));
    }
    let mut parser = ast::parse::ParserBuilder::new();
    let parsed = parser.nest_limit(MAX_NESTING).build().parse(pattern);
    let ast = parsed.map_err(|error| error.kind().to_string())?;
    let Ok(has_unicode) = ast::visit(&ast, UnicodeFlag(false));
    if has_unicode {
        return Err(NO_UNICODE_MODE.to_owned());
    }
    let mut translator = TranslatorBuilder::new();
    let mut translator = translator.unicode(false).utf8(false).build();
    let translated = translator.translate(pattern, &ast);
    let hir = translated.map_err(|error| match error.kind() {
        hir::ErrorKind::UnicodeNotAllowed => ASCII_CLASSES.to_owned(),
        kind => kind.to_string(),
    })?;
    Ok(Hir::concat(vec![hir, Hir::look(Look::End)]))
}

/// A search for the flag `u`, such as in `(?u:\w)`. Tables of Unicode are part of a program if any
/// crate in it wants them. So the operator would accept expressions that the filter refuses.
struct UnicodeFlag(bool);

impl ast::Visitor for UnicodeFlag {
    type Output = bool;
    type Err = Infallible;

    fn finish(self) -> Result<bool, Infallible> {
        Ok(self.0)
    }

    fn visit_pre(&mut self, ast: &Ast) -> Result<(), Infallible> {
        let flags = match ast {
            Ast::Flags(set) => Some(&set.flags),
            Ast::Group(group) => group.flags(),
            _ => None,
        };
        self.0 |= flags.is_some_and(|flags| flags.flag_state(Flag::Unicode) == Some(true));
        Ok(())
    }
}
