//! The services: their start, their requests, and the objectives of their users. The sources of the
//! services are in `tests/wild`.
//!
//! A service, its database and the processes that compete with it run on one core. The proxy and
//! the load generator have the others.

use std::ffi::OsStr;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use tempfile::TempDir;

use crate::http;
use crate::kube::programs;
use crate::mesh::ports::free_port;
use crate::mix::QueryType;
use crate::process::{self, Child};
use crate::wait;

/// The number of the core on which services run.
pub(super) const CORE: usize = 0;

/// The number of workers of the forking service, which share [`POOL`] connections to its database.
const WORKERS: usize = 8;
/// The number of connections to the database.
const POOL: usize = 4;

/// A service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// Starlette on one event loop, with three threads for SQLite.
    Sqlite,
    /// Flask in forked gunicorn workers, PgBouncer, PostgreSQL.
    Postgres,
    /// Go's HTTP server with requests that only compute.
    Cpu,
}

impl Service {
    /// All services.
    pub const ALL: [Self; 3] = [Self::Sqlite, Self::Postgres, Self::Cpu];

    /// Returns the name in `--service`, files and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
            Self::Cpu => "cpu",
        }
    }

    /// Returns a short description.
    pub fn title(self) -> &'static str {
        match self {
            Self::Sqlite => "async Python on SQLite, three query threads",
            Self::Postgres => "gunicorn with 8 workers on PostgreSQL, 4 connections",
            Self::Cpu => "Go, CPU-bound",
        }
    }

    /// Returns the types of request, the costliest last. Their service times are measured later.
    pub(super) fn mix(self) -> Vec<QueryType> {
        let types = match self {
            Self::Sqlite => [
                ("customer", "/customer"),
                ("search", "/search"),
                ("report", "/report"),
            ],
            Self::Postgres => [
                ("member", "/member"),
                ("search", "/search"),
                ("report", "/report"),
            ],
            Self::Cpu => [
                ("album", "/album"),
                ("thumbnail", "/thumbnail"),
                ("photo", "/photo"),
            ],
        };
        let ms = Duration::from_millis;
        let cheap = (ms(50), ms(150));
        let demands = [(0.6, cheap), (0.3, cheap), (0.1, (ms(200), ms(500)))];
        types
            .into_iter()
            .zip(demands)
            .map(|((name, path), (share, (p50, p90)))| QueryType {
                name,
                path,
                share,
                mean: Duration::ZERO,
                median: Duration::ZERO,
                p50,
                p90,
            })
            .collect()
    }

    /// Returns the number of busy loops that take about half of the core from the service: as many
    /// as it has computing threads or processes.
    fn competitors(self) -> usize {
        match self {
            Self::Sqlite => 3,
            Self::Postgres => POOL,
            Self::Cpu => 1,
        }
    }
}

/// The parts of a service that survive its restarts: its data, and a database server.
#[derive(Debug)]
pub(super) struct Site {
    service: Service,
    // The database is dropped before the folder of its data.
    database: Option<Child>,
    database_port: u16,
    dir: TempDir,
}

/// A running service.
#[derive(Debug)]
pub(super) struct Running {
    service: Service,
    children: Vec<Child>,
    addr: SocketAddr,
    disturbance: Option<Disturbance>,
}

/// Processes that take CPU time from a service, and workers that are stopped.
#[derive(Debug)]
struct Disturbance {
    _competitors: Vec<Child>,
    stopped: Vec<Pid>,
}

impl Drop for Disturbance {
    fn drop(&mut self) {
        for worker in &self.stopped {
            let _ = kill_process(*worker, Signal::CONT);
        }
    }
}

impl Site {
    /// Creates the service's data.
    ///
    /// # Errors
    /// If a program that the service needs fails. If this kind of machine can't have a program,
    /// [`programs::why_unavailable`] returns the reason.
    pub(super) fn prepare(service: Service) -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("headgate-wild-")
            .tempdir()?;
        let mut site = Self {
            service,
            database: None,
            database_port: free_port()?,
            dir,
        };
        match service {
            Service::Sqlite => {}
            Service::Postgres => site.start_database()?,
            Service::Cpu => {
                let mut go = Command::new(programs::go()?);
                go.args(["build", "-o"])
                    .arg(site.dir.path().join("service"))
                    .arg(sources(service).join("main.go"))
                    .env("CGO_ENABLED", "0");
                process::run(&mut go, None).context("building the service")?;
            }
        }
        Ok(site)
    }

    /// Starts the service and waits until it answers.
    ///
    /// # Errors
    /// If the service doesn't start or answer. The error contains the last lines of its output.
    pub(super) fn start(&self) -> Result<Running> {
        let port = free_port()?;
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let (dir, sources) = (self.dir.path(), sources(self.service));
        let mut children = Vec::new();
        match self.service {
            Service::Sqlite => {
                let mut command = on_core(programs::service_python()?);
                command
                    .args(["-m", "uvicorn", "--no-access-log", "--log-level", "warning"])
                    .args(["--port", &port.to_string(), "--app-dir"])
                    .arg(sources)
                    .arg("service:app")
                    .env("DATABASE", dir.join("shop.db"))
                    .env("PYTHONDONTWRITEBYTECODE", "1");
                children.push(self.spawn("uvicorn", &command)?);
            }
            Service::Postgres => {
                let pool_port = free_port()?;
                let settings = dir.join("pgbouncer.ini");
                fs::write(
                    &settings,
                    format!(
                        "[databases]\nlibrary = host=127.0.0.1 port={} \
                         dbname=postgres user=library\n\
                         [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {pool_port}\n\
                         unix_socket_dir =\nauth_type = any\npool_mode = transaction\n\
                         default_pool_size = {POOL}\n",
                        self.database_port
                    ),
                )?;
                let mut pool = not_as_root(&programs::postgres()?.join("pgbouncer"));
                pool.arg(settings);
                children.push(self.spawn("pgbouncer", &pool)?);
                let mut command = on_core(programs::service_python()?);
                command
                    .args(["-m", "gunicorn", "--log-level", "warning", "--workers"])
                    .arg(WORKERS.to_string())
                    .args(["--bind", &addr.to_string(), "--chdir"])
                    .arg(sources)
                    .arg("service:app")
                    .env(
                        "DATABASE",
                        format!("postgresql://library@127.0.0.1:{pool_port}/library"),
                    )
                    .env("PYTHONDONTWRITEBYTECODE", "1");
                children.push(self.spawn("gunicorn", &command)?);
            }
            Service::Cpu => {
                let mut command = on_core(&dir.join("service"));
                command.arg(addr.to_string());
                children.push(self.spawn("service", &command)?);
            }
        }
        let mut running = Running {
            service: self.service,
            children,
            addr,
            disturbance: None,
        };
        running.wait_until_answering()?;
        Ok(running)
    }

    fn start_database(&mut self) -> Result<()> {
        let programs = programs::postgres()?;
        let dir = self.dir.path();
        let data = dir.join("data");
        let mut init = not_as_root(&programs.join("initdb"));
        init.args([
            "--username=library",
            "--auth=trust",
            "--no-sync",
            "--no-locale",
            "--encoding=UTF8",
            "--pgdata",
        ])
        .arg(&data)
        .current_dir("/");
        process::run(&mut init, None).context("initdb")?;
        let mut server = not_as_root(&programs.join("postgres"));
        server
            .args([
                "-h",
                "127.0.0.1",
                "-k",
                "",
                "-p",
                &self.database_port.to_string(),
                "-D",
            ])
            .arg(&data)
            .current_dir("/");
        self.database = Some(self.spawn("postgres", &server)?);
        let url = format!(
            "postgresql://library@127.0.0.1:{}/postgres",
            self.database_port
        );
        let python = programs::service_python()?;
        let run = |script: &str, arguments: &[&OsStr]| {
            let mut command = Command::new(python);
            command.arg("-c").arg(script).arg(&url).args(arguments);
            process::run(&mut command, None)
        };
        wait::until("PostgreSQL to take connections", || {
            run("import psycopg, sys; psycopg.connect(sys.argv[1])", &[]).map_err(|e| e.to_string())
        })
        .with_context(|| self.database.as_ref().map(Child::tail).unwrap_or_default())?;
        run(
            "import psycopg, sys; psycopg.connect(sys.argv[1], \
             autocommit=True).execute(open(sys.argv[2]).read())",
            &[sources(self.service).join("fill.sql").as_os_str()],
        )
        .context("filling the database")?;
        Ok(())
    }

    fn spawn(&self, name: &str, command: &Command) -> Result<Child> {
        Child::spawn_tied(name, command, &self.dir.path().join(format!("{name}.log")))
    }
}

impl Running {
    /// Returns the address on which the service listens.
    pub(super) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Takes about half of the core from the service, and stops half of its workers if it has any.
    ///
    /// # Errors
    /// If the competitors can't be started.
    pub(super) fn disturb(&mut self) -> Result<()> {
        let competitor = |_| {
            let mut command = on_core(Path::new("sh"));
            command.args(["-c", "while :; do :; done"]);
            Child::spawn("competitor", &mut command)
        };
        let competitors: Result<Vec<Child>> =
            (0..self.service.competitors()).map(competitor).collect();
        let mut stopped = Vec::new();
        if self.service == Service::Postgres {
            let workers = self
                .children
                .last()
                .map(|master| children_of(master.pid()))
                .unwrap_or_default();
            stopped.extend(workers.into_iter().take(WORKERS / 2));
            for worker in &stopped {
                kill_process(*worker, Signal::STOP)?;
            }
        }
        self.disturbance = Some(Disturbance {
            _competitors: competitors?,
            stopped,
        });
        Ok(())
    }

    /// Ends the disturbance of [`disturb`](Self::disturb).
    pub(super) fn recover(&mut self) {
        self.disturbance = None;
    }

    /// Measures the service times, the mean and the median time of `count` requests of each type,
    /// one after the other, without any load. The slowest tenth of these requests doesn't count. As
    /// many requests before them warm up caches and connect the workers to their database.
    ///
    /// # Errors
    /// If a request isn't answered.
    pub(super) fn measure(&self, mix: &mut [QueryType], count: usize) -> Result<()> {
        for query in mix {
            let mut times: Vec<Duration> = Vec::new();
            for _ in 0..2 * count {
                let sent = Instant::now();
                let answer = http::get(self.addr, query.path)?;
                if answer.status != 200 {
                    bail!("{}: {answer:?}\n{}", query.path, self.tail());
                }
                times.push(sent.elapsed());
            }
            let mut times = times.split_off(count);
            times.sort();
            // The slowest tenth was probably disturbed by other work on this machine.
            times.truncate((count - count / 10).max(1));
            query.mean = times.iter().sum::<Duration>().div_f64(times.len() as f64);
            query.median = times.get(times.len() / 2).copied().unwrap_or_default();
        }
        Ok(())
    }

    fn wait_until_answering(&mut self) -> Result<()> {
        let path = self.service.mix().first().map_or("/", |query| query.path);
        let answering =
            wait::until(
                &format!("{} to answer", self.service.title()),
                || match http::get(self.addr, path) {
                    Ok(answer) if answer.status == 200 => Ok(()),
                    Ok(answer) => Err(format!("{} {}", answer.status, answer.body)),
                    Err(error) => Err(error.to_string()),
                },
            );
        answering.with_context(|| self.tail())
    }

    /// Returns the last lines of output of the service's processes, for messages.
    fn tail(&self) -> String {
        self.children.iter().map(Child::tail).collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Stopped workers don't end, so they are resumed first.
        self.disturbance = None;
        while let Some(child) = self.children.pop() {
            let _ = child.stop();
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Some(database) = self.database.take() {
            let _ = database.stop();
        }
    }
}

fn sources(service: Service) -> PathBuf {
    programs::repository()
        .join("tests/wild")
        .join(service.name())
}

/// Returns the command of a program on the services' core.
pub(in crate::bench) fn on_core(program: &Path) -> Command {
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", &CORE.to_string()]).arg(program);
    command
}

/// Returns the command of a program on the services' core that refuses to run as root. For root,
/// the program gets a user namespace in which root's id is mapped to that of the user `nobody`. So
/// it doesn't run as root, and can still read root's folders, where downloaded programs are.
fn not_as_root(program: &Path) -> Command {
    if !geteuid().is_root() {
        return on_core(program);
    }
    let mut command = on_core(Path::new("unshare"));
    command
        .args(["--user", "--map-user=65534", "--map-group=65534", "--"])
        .arg(program);
    command
}

/// Returns the child processes of a process.
fn children_of(pid: u32) -> Vec<Pid> {
    let children =
        fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children
        .split_whitespace()
        .filter_map(|child| Pid::from_raw(child.parse().ok()?))
        .collect()
}
