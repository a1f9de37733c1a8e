//! The `headgate` binary. All of its code is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    headgate::main()
}
