//! The `pilothouse` binary: flags, signals, exit codes. Everything else is [`Server::start`].

use std::io::Write as _;
use std::process::ExitCode;

use pilothouse::config::Config;
use pilothouse::server::{Exit, Handle, Server};
use pilothouse::telemetry;
use tokio::signal::unix::{SignalKind, signal};

// Bodies and events are allocated on one thread and freed on another all the time. The system's allocator takes locks for that.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Before anything else: memory that is in a huge page by then stays there. (.cargo/config.toml tells the allocator even
    // earlier.)
    let huge_pages = refuse_huge_pages();
    if let Some(code) = pilothouse::commands::run_if_selected(std::env::args_os()) {
        return code;
    }
    let config = match Config::parse(std::env::args_os()) {
        Ok(config) => config,
        Err(error) => {
            // If even this message cannot be printed, nothing is left to do.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(1));
        }
    };
    reexec_with_purge_delay(&config);
    match run(config, huge_pages) {
        Ok(Exit::Stopped) => ExitCode::SUCCESS,
        Ok(Exit::Failed(reason)) => fail(&reason),
        Err(error) => fail(&error.to_string()),
    }
}

fn fail(reason: &str) -> ExitCode {
    telemetry::report_fatal(reason);
    ExitCode::FAILURE
}

fn run(config: Config, huge_pages: nix::Result<()>) -> Result<Exit, Box<dyn std::error::Error>> {
    let _log = telemetry::init(&config.logging)?;
    if let Err(error) = huge_pages {
        tracing::debug!(%error, "huge pages cannot be disabled");
    }
    raise_open_files();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let exit = runtime.block_on(serve(config));
    // A start that was cut short is still under way on another thread, and nobody waits for it.
    runtime.shutdown_background();
    exit
}

/// Serves until a signal comes. A second one, or one during the start, which may take long if the log is long, ends the process
/// without waiting for anything: the log is as safe as after a crash.
async fn serve(config: Config) -> Result<Exit, Box<dyn std::error::Error>> {
    // Before the start, so that a signal during the start is not lost.
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut wait_for_signal = async || {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
    };
    let mut server = tokio::select! {
        started = Server::start_async(config) => started?,
        () = wait_for_signal() => {
            tracing::info!("stopped by a signal before it was ready");
            return Ok(Exit::Stopped);
        }
    };
    if let Err(error) = print_kubectl_command(&server) {
        tracing::warn!(%error, "the kubectl command cannot be printed");
    }
    tokio::select! {
        exit = server.exited() => return Ok(exit),
        () = wait_for_signal() => server.stopper().stop(),
    }
    tokio::select! {
        exit = server.exited() => return Ok(exit),
        () = wait_for_signal() => {}
    }
    server.abandon();
    Err("stopped at once by a second signal".into())
}

/// Prints the only line on stdout: a kubectl command to paste.
fn print_kubectl_command(server: &Handle) -> std::io::Result<()> {
    let Some(path) = server.kubeconfig_path() else { return Ok(()) };
    let path = std::path::absolute(path)?;
    let mut stdout = std::io::stdout();
    writeln!(stdout, "kubectl --kubeconfig {} get namespaces", path.display())?;
    stdout.flush()
}

/// Without this the allocator asks for huge pages and the kernel fills them whole: up to 20 MB more for an idle server. No
/// benchmark was faster with them.
fn refuse_huge_pages() -> nix::Result<()> {
    #[cfg(target_os = "linux")]
    nix::sys::prctl::set_thp_disable(true)?;
    Ok(())
}

/// The allocator keeps freed memory for a while. A server with a memory limit would count that as memory in use, and refuse
/// requests long after those that needed it. The allocator reads its settings before the first line of main, so the program
/// re-executes itself once, with the setting that returns freed memory soon. An operator's own setting stays.
fn reexec_with_purge_delay(config: &Config) {
    use std::os::unix::process::CommandExt as _;
    const SETTING: &str = "MIMALLOC_PURGE_DELAY";
    // The usual setting is a second. 0, which is at once, gave back more, but writes were slower in the one run that was measured.
    const MILLISECONDS: &str = "10";
    if !cfg!(feature = "mimalloc")
        || std::env::var_os(SETTING).is_some()
        || config.limits.memory_limit.bytes().is_none()
    {
        return;
    }
    let mut arguments = std::env::args_os();
    let (Ok(program), Some(name)) = (std::env::current_exe(), arguments.next()) else { return };
    // Returns only if it failed: then the server goes on with the default setting.
    let _ = std::process::Command::new(program).arg0(name).args(arguments).env(SETTING, MILLISECONDS).exec();
}

/// Every connection is an open file, and the usual soft limit is far below what this server can serve.
fn raise_open_files() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let result = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = result {
        tracing::warn!(%error, "the limit of open files cannot be raised");
    }
}
