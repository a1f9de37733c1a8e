//! Child processes whose output is kept and that never outlive their owner.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{LazyLock, Mutex, PoisonError, mpsc};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::wait;

/// The number of lines of output that are shown when a process fails.
const TAIL_LINES: usize = 40;

/// The time that a process may take to end after SIGTERM.
const STOP_DEADLINE: Duration = Duration::from_secs(5);

/// A child process. Its output goes to a file. Dropping this value kills the process.
#[derive(Debug)]
pub struct Child {
    name: String,
    child: std::process::Child,
    log: PathBuf,
    _dir: Option<TempDir>,
}

impl Child {
    /// Starts `command`. `name` is for messages.
    ///
    /// # Errors
    /// If the process can't be started.
    pub fn spawn(name: &str, command: &mut Command) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("headgate-").tempdir()?;
        let log = dir.path().join("output.log");
        let output = File::create(&log)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| {
                format!(
                    "cannot start {name} ({})",
                    command.get_program().to_string_lossy()
                )
            })?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log,
            _dir: Some(dir),
        })
    }

    /// Starts `command` so that the kernel kills it when this process ends for any reason. A child
    /// in a static is never dropped, and a killed process drops nothing. The child's output is
    /// appended to the file `log`, which stays.
    ///
    /// # Errors
    /// If the process can't be started.
    pub fn spawn_tied(name: &str, command: &Command, log: &Path) -> Result<Self> {
        let output = File::options().create(true).append(true).open(log)?;
        let mut tied = Command::new("setpriv");
        tied.args(["--pdeathsig", "KILL", "--"])
            .arg(command.get_program())
            .args(command.get_args());
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => tied.env(key, value),
                None => tied.env_remove(key),
            };
        }
        if let Some(dir) = command.get_current_dir() {
            tied.current_dir(dir);
        }
        tied.stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        let child = spawn_from_lasting_thread(tied).with_context(|| {
            let program = command.get_program().to_string_lossy();
            format!("cannot start {name} ({program}) by setpriv (Debian: util-linux)")
        })?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log: log.to_owned(),
            _dir: None,
        })
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the whole output of the process so far.
    pub fn output(&self) -> String {
        let mut bytes = Vec::new();
        if let Ok(mut file) = File::open(&self.log) {
            let _ = file.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns the last lines of output of the process, for messages.
    pub fn tail(&self) -> String {
        let output = self.output();
        let lines: Vec<&str> = output.lines().collect();
        let mut text = format!("--- last lines of {} ---\n", self.name);
        for line in &lines[lines.len().saturating_sub(TAIL_LINES)..] {
            let _ = writeln!(text, "{line}");
        }
        text
    }

    /// Waits for a line of output that contains `mark`, and returns the line.
    ///
    /// # Errors
    /// If the process ends or the deadline passes first. The error contains the last lines of
    /// output.
    pub fn wait_for_line(&mut self, mark: &str) -> Result<String> {
        let found = wait::until(&format!("{:?} from {}", mark, self.name), || {
            let ended = !self.is_running();
            // The last line may be incomplete, so only whole lines count.
            let output = self.output();
            let line = output
                .split_inclusive('\n')
                .find(|line| line.contains(mark) && line.ends_with('\n'));
            match line {
                Some(line) => Ok(Some(line.trim_end().to_owned())),
                None if ended => Ok(None),
                None => Err("no such line".to_owned()),
            }
        });
        match found {
            Ok(Some(line)) => Ok(line),
            Ok(None) => bail!(
                "{} ended before it said {mark:?}\n{}",
                self.name,
                self.tail()
            ),
            Err(error) => Err(anyhow!("{error}\n{}", self.tail())),
        }
    }

    /// Whether the process is still running.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends SIGTERM to the process, waits, and kills the process if it doesn't end.
    ///
    /// # Errors
    /// If the end of the process can't be awaited.
    pub fn stop(mut self) -> Result<()> {
        self.terminate();
        if self.wait_for_end(STOP_DEADLINE).is_err() {
            self.child.kill()?;
        }
        self.child.wait()?;
        Ok(())
    }

    /// Sends SIGTERM to the process and returns at once.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Suspends the process (SIGSTOP). It keeps its sockets and answers nothing.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Resumes the process after [`pause`](Self::pause).
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.pid()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Kills the process without notice (SIGKILL).
    ///
    /// # Errors
    /// If the process can't be killed, or its end can't be awaited.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Waits until the process ends by itself.
    ///
    /// # Errors
    /// If it doesn't end within `deadline`. The error contains its last lines of output.
    pub fn wait_for_end(&mut self, deadline: Duration) -> Result<ExitStatus> {
        let ended = wait::until_within(deadline, &format!("the end of {}", self.name), || {
            self.child
                .try_wait()
                .map_err(|e| e.to_string())?
                .ok_or_else(|| "running".to_owned())
        });
        ended.map_err(|error| anyhow!("{error}\n{}", self.tail()))
    }

    /// Returns the CPU time of all threads of the process since its start.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn cpu_time(&self) -> Result<Duration> {
        cpu_time(&format!("/proc/{}/stat", self.pid()))
    }

    /// Returns the resident memory of the process, bytes.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn resident_bytes(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line
            .and_then(|l| l.split_whitespace().next())
            .and_then(|n| n.parse::<u64>().ok());
        kib.map(|n| n * 1_024)
            .ok_or_else(|| anyhow!("no VmRSS of process {}", self.pid()))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a child from a thread that ends with the process. The kernel sends the signal of a
/// parent's death when the thread that started the child ends. A test's thread ends with its test,
/// so children that tests share need a lasting thread.
fn spawn_from_lasting_thread(command: Command) -> std::io::Result<std::process::Child> {
    type Order = (Command, mpsc::Sender<std::io::Result<std::process::Child>>);
    static SPAWNER: LazyLock<Mutex<mpsc::Sender<Order>>> = LazyLock::new(|| {
        let (orders, inbox) = mpsc::channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, answer) in inbox {
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(orders)
    });
    let (answer, started) = mpsc::channel();
    let orders = SPAWNER.lock().unwrap_or_else(PoisonError::into_inner);
    let gone = || std::io::Error::other("the thread that starts processes is gone");
    orders.send((command, answer)).map_err(|_| gone())?;
    drop(orders);
    started.recv().map_err(|_| gone())?
}

/// Returns the user and system time in a `stat` file of `/proc`, which counts in ticks of 10 ms.
fn cpu_time(path: &str) -> Result<Duration> {
    let stat = fs::read_to_string(path)?;
    // The second field is the name in parentheses, which may contain spaces. utime and stime are
    // fields 14 and 15.
    let after_name = stat
        .rsplit_once(')')
        .map(|(_, rest)| rest)
        .unwrap_or_default();
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let ticks = |index: usize| fields.get(index).and_then(|f| f.parse::<u64>().ok());
    match (ticks(11), ticks(12)) {
        (Some(user), Some(system)) => Ok(Duration::from_millis((user + system) * 10)),
        _ => bail!("cannot read {path}"),
    }
}

/// Runs a command to its end with `input` as its standard input, and returns its standard output.
///
/// # Errors
/// If the command can't be run or fails. The error contains its standard error.
pub fn run(command: &mut Command, input: Option<&str>) -> Result<String> {
    command
        .stdin(if input.is_some() {
            Stdio::piped()
        } else {
            Stdio::null()
        })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| {
        let program = command.get_program().to_string_lossy();
        format!("cannot run {program}")
    })?;
    // The input is written by another thread. Otherwise a program that writes much before it has
    // read all its input would cause a deadlock.
    let output = std::thread::scope(|scope| {
        if let (Some(mut stdin), Some(input)) = (child.stdin.take(), input) {
            // A program that ends without reading its input reports the reason itself.
            scope.spawn(move || stdin.write_all(input.as_bytes()));
        }
        child.wait_with_output()
    })?;
    if !output.status.success() {
        // `kubectl diff` fails if there is a difference, without an error on standard error.
        let stderr_is_empty = output.stderr.trim_ascii().is_empty();
        let message = if stderr_is_empty {
            &output.stdout
        } else {
            &output.stderr
        };
        let message = String::from_utf8_lossy(message);
        bail!("{}: {}", output.status, message.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
