//! Commands in pages.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::{Block, blocks, markdown, shown};

/// A command in a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// The number of its first line in the page.
    pub line: usize,
    /// The command, with its continuation lines.
    pub text: String,
    /// The lines that the page shows as its output.
    pub output: Vec<String>,
}

impl Block {
    /// Returns the commands in a block of shell: its lines, or those after a prompt if the block
    /// has prompts.
    pub fn commands(&self) -> Vec<Command> {
        if !["sh", "console", "bash"].contains(&self.language.as_str()) {
            return Vec::new();
        }
        let has_prompts = self.text.lines().any(|line| line.trim().starts_with("$ "));
        let mut commands: Vec<Command> = Vec::new();
        let mut is_open = false;
        for (number, line) in self.text.lines().enumerate() {
            let line = line.trim();
            let (text, ends) = match line.strip_suffix('\\') {
                Some(text) => (text, false),
                None => (line, true),
            };
            let prompted = text.strip_prefix("$ ");
            match (commands.last_mut(), prompted) {
                (Some(last), _) if is_open => last.text.push_str(text),
                (Some(last), None) if has_prompts => last.output.push(line.to_owned()),
                _ if line.is_empty() => continue,
                _ => commands.push(Command {
                    line: self.line + 1 + number,
                    text: prompted.unwrap_or(text).to_owned(),
                    output: Vec::new(),
                }),
            }
            is_open = !ends;
        }
        commands
    }
}

/// A Markdown file.
#[derive(Debug, Clone)]
pub struct Page {
    /// Its path in the repository.
    pub path: String,
    /// Its blocks of code.
    pub blocks: Vec<Block>,
}

/// Returns the Markdown files of the repository, in order.
///
/// # Errors
/// If one can't be read.
pub fn pages() -> Result<Vec<Page>> {
    let read = |file: PathBuf| {
        let path = shown(&file);
        let text = fs::read_to_string(&file).with_context(|| path.clone())?;
        let blocks = blocks(&text).0;
        Ok(Page { path, blocks })
    };
    markdown()?.into_iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(markdown: &str) -> Vec<Command> {
        let blocks = blocks(markdown).0;
        blocks.iter().flat_map(Block::commands).collect()
    }

    fn command(line: usize, text: &str, output: &[&str]) -> Command {
        let output = output.iter().map(|&line| line.to_owned()).collect();
        Command {
            line,
            text: text.to_owned(),
            output,
        }
    }

    #[test]
    fn each_line_of_shell_is_a_command_unless_it_continues_one() {
        let text = "# A\n```sh\na b \\\n  --c   # why\n\nd | e\n```\n```text\nf\n```\n";
        assert_eq!(
            found(text),
            [command(3, "a b --c   # why", &[]), command(6, "d | e", &[])]
        );
    }

    #[test]
    fn lines_without_a_prompt_are_output_where_others_have_one() {
        let text = "1. A\n\n   ```console\n   $ a\n   one\n   two\n   $ b\n   ```\n";
        assert_eq!(
            found(text),
            [command(4, "a", &["one", "two"]), command(7, "b", &[])]
        );
    }
}
