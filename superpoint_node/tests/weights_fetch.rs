//! `superpoint weights` against a small imitation of the Hugging Face hub on this machine.
//!
//! The file that the imitation serves is the bundled one: a SuperPoint like any other to this code.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use tempfile::TempDir;

const REVISION: &str = "734450e9ffe229074f5998494ddc615475cdb20a";
const RESOLVE: &str =
    "/magic-leap-community/superpoint/resolve/734450e9ffe229074f5998494ddc615475cdb20a/model.safetensors";
const REPO_FOLDER: &str = "models--magic-leap-community--superpoint";
const WEIGHTS: &[u8] = include_bytes!("../../weights/superpoint_open.safetensors");

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// How the imitation behaves.
#[derive(Clone)]
struct Behaviour {
    /// Answers every request with this status instead.
    status: Option<&'static str>,
    /// Redirects on the hub itself before its answer, as for a renamed repository.
    renamed: bool,
    /// The revision in `X-Repo-Commit`.
    commit: &'static str,
    /// The hash that is announced.
    sha256: String,
    /// The length that is announced.
    size: usize,
    /// What is sent.
    body: Vec<u8>,
    /// Bytes after which each transfer stops: the first, the second, ... transfer; the rest is whole.
    stops: Vec<usize>,
    /// What happens at a stop: the connection is held open instead of closed.
    stall: bool,
    /// The hub never answers.
    mute: bool,
    /// `Range` is honoured.
    ranges: bool,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            status: None,
            renamed: false,
            commit: REVISION,
            sha256: sha256(WEIGHTS),
            size: WEIGHTS.len(),
            body: WEIGHTS.to_vec(),
            stops: Vec::new(),
            stall: false,
            mute: false,
            ranges: true,
        }
    }
}

/// One request as it came in.
#[derive(Clone, Debug)]
struct Request {
    method: String,
    path: String,
    headers: HashMap<String, String>,
}

/// The hub and the store that it redirects to, on one port under two names.
struct FakeHub {
    port: u16,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl FakeHub {
    fn start(behaviour: Behaviour) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = requests.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (behaviour, seen) = (behaviour.clone(), seen.clone());
                // A client that goes away in the middle is no concern of the imitation.
                std::thread::spawn(move || serve(&stream, port, &behaviour, &seen).unwrap_or_default());
            }
        });
        Self { port, requests }
    }

    fn requests(&self) -> Vec<Request> {
        self.requests.lock().expect("no panic").clone()
    }
}

fn serve(stream: &TcpStream, port: u16, behaviour: &Behaviour, seen: &Mutex<Vec<Request>>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut out = stream;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let mut words = line.split_whitespace().map(str::to_owned);
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let mut headers = HashMap::new();
        loop {
            let mut header = String::new();
            reader.read_line(&mut header)?;
            let Some((name, value)) = header.trim().split_once(':') else { break };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let request = Request { method, path, headers };
        let transfers = {
            let mut seen = seen.lock().expect("no panic");
            seen.push(request.clone());
            seen.iter().filter(|request| request.path == "/store").count()
        };

        if behaviour.mute {
            std::thread::sleep(Duration::from_secs(30));
            return Ok(());
        }
        if let Some(status) = behaviour.status {
            write!(out, "HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n")?;
            continue;
        }
        match request.path.as_str() {
            RESOLVE if behaviour.renamed => {
                write!(out, "HTTP/1.1 307 Temporary Redirect\r\nLocation: /new{RESOLVE}\r\nContent-Length: 0\r\n\r\n")?;
            }
            path if path.ends_with(RESOLVE) => {
                // Length 0 and another ETag: those are of the redirect, not of the file.
                write!(
                    out,
                    "HTTP/1.1 302 Found\r\nLocation: http://localhost:{port}/store\r\nX-Repo-Commit: {}\r\n\
                     X-Linked-Etag: \"{}\"\r\nX-Linked-Size: {}\r\nETag: \"redirect\"\r\nContent-Length: 0\r\n\r\n",
                    behaviour.commit, behaviour.sha256, behaviour.size
                )?;
            }
            "/store" => {
                let start = request
                    .headers
                    .get("range")
                    .filter(|_| behaviour.ranges)
                    .and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
                let rest = &behaviour.body[start.unwrap_or(0)..];
                match start {
                    Some(start) => write!(
                        out,
                        "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {start}-{}/{}\r\n",
                        behaviour.body.len() - 1,
                        behaviour.body.len()
                    )?,
                    None => write!(out, "HTTP/1.1 200 OK\r\n")?,
                }
                write!(out, "Content-Length: {}\r\nETag: \"store\"\r\n\r\n", rest.len())?;
                match behaviour.stops.get(transfers - 1) {
                    None => out.write_all(rest)?,
                    Some(&stop) => {
                        out.write_all(&rest[..stop.min(rest.len())])?;
                        out.flush()?;
                        if behaviour.stall {
                            std::thread::sleep(Duration::from_secs(30));
                        }
                        return Ok(());
                    }
                }
            }
            _ => write!(out, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")?,
        }
    }
}

/// A user with an empty home folder.
struct User {
    home: TempDir,
    variables: Vec<(&'static str, String)>,
}

impl User {
    fn new() -> Self {
        Self { home: tempfile::tempdir().expect("a temporary folder"), variables: Vec::new() }
    }

    fn of(hub: &FakeHub) -> Self {
        Self::new().with("HF_ENDPOINT", &format!("http://127.0.0.1:{}", hub.port))
    }

    fn with(mut self, name: &'static str, value: &str) -> Self {
        self.variables.push((name, value.to_owned()));
        self
    }

    fn run(&self, arguments: &[&str]) -> Outcome {
        let started = Instant::now();
        let output = Command::new(env!("CARGO_BIN_EXE_superpoint"))
            .arg("weights")
            .args(arguments)
            .env_clear()
            .env("HOME", self.home.path())
            .envs(self.variables.iter().map(|(name, value)| (*name, value)))
            .stdin(std::process::Stdio::null())
            .output()
            .expect("the binary was built for this test");
        assert!(started.elapsed() < Duration::from_secs(25), "it hung");
        Outcome::new(&output)
    }

    fn fetch(&self) -> Outcome {
        self.run(&["fetch", "--accept-licence"])
    }

    fn repo(&self) -> PathBuf {
        self.home.path().join(".cache/huggingface/hub").join(REPO_FOLDER)
    }

    fn snapshot(&self) -> PathBuf {
        self.repo().join("snapshots").join(REVISION).join("model.safetensors")
    }

    /// Every file, link and folder in the repository's cache, relative to it.
    fn cached(&self) -> Vec<String> {
        fn walk(folder: &Path, root: &Path, found: &mut Vec<String>) {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let path = entry.path();
                if path.is_dir() && !path.is_symlink() {
                    walk(&path, root, found);
                } else {
                    found.push(path.strip_prefix(root).expect("below").display().to_string());
                }
            }
        }
        let mut found = Vec::new();
        walk(&self.repo(), &self.repo(), &mut found);
        found.sort();
        found
    }
}

struct Outcome {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Outcome {
    fn new(output: &Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    #[track_caller]
    fn succeeded(self) -> Self {
        assert_eq!(self.code, Some(0), "stderr: {}", self.stderr);
        self
    }

    /// Failed, said each of `parts`, and printed no data.
    #[track_caller]
    fn failed_saying(self, parts: &[&str]) {
        assert_eq!(self.code, Some(1), "stdout: {}, stderr: {}", self.stdout, self.stderr);
        for part in parts {
            assert!(self.stderr.contains(part), "`{part}` is not in: {}", self.stderr);
        }
        assert_eq!(self.stdout, "");
    }
}

#[test]
fn fetch_makes_the_layout_of_huggingface_hub_and_the_search_finds_it() {
    let hub = FakeHub::start(Behaviour::default());
    let user = User::of(&hub).with("HF_TOKEN", "hf_secret");
    assert_eq!(user.run(&["path"]).succeeded().stdout, "bundled\n");

    let outcome = user.fetch().succeeded();
    assert_eq!(outcome.stdout, format!("{}\n", user.snapshot().display()));
    for part in ["noncommercial research", "redistributed or sublicensed", "LICENSE", REVISION] {
        assert!(outcome.stderr.contains(part), "{}", outcome.stderr);
    }

    let hash = sha256(WEIGHTS);
    assert_eq!(
        user.cached(),
        [format!("blobs/{hash}"), format!("snapshots/{REVISION}/model.safetensors")],
        "nothing else is left behind"
    );
    assert_eq!(fs::read_link(user.snapshot()).expect("a link"), Path::new("../../blobs").join(&hash));
    assert_eq!(fs::read(user.snapshot()).expect("readable"), WEIGHTS);

    assert_eq!(user.run(&["path"]).succeeded().stdout, outcome.stdout);
    let inspected = user.run(&["inspect"]).succeeded().stdout;
    assert!(inspected.contains("name      magic-leap-community/superpoint\n"), "{inspected}");
    assert!(inspected.contains(&format!("revision  {REVISION}\n")), "{inspected}");
    assert!(inspected.contains(&format!("sha256    {hash}\n")), "{inspected}");

    // The hub heard the token, the store on another host did not.
    let requests = hub.requests();
    let heard = |path: &str| {
        let mut of_path = requests.iter().filter(|request| request.path == path).peekable();
        assert!(of_path.peek().is_some());
        of_path.all(|request| request.headers.contains_key("authorization"))
    };
    assert!(heard(RESOLVE));
    assert!(!heard("/store"));
    assert!(!outcome.stderr.contains("hf_secret"));

    // A second time there is nothing to do, and nobody is asked.
    let again = user.run(&["fetch"]).succeeded();
    assert_eq!(again.stdout, outcome.stdout);
    assert_eq!(hub.requests().len(), requests.len());
}

#[test]
fn cache_variables_are_honoured_in_their_order() {
    let hub = FakeHub::start(Behaviour::default());
    let elsewhere = tempfile::tempdir().expect("a temporary folder");
    let below = |name: &str| elsewhere.path().join(name).display().to_string();
    let mut user = User::of(&hub);
    for (name, value, folder) in [
        ("XDG_CACHE_HOME", below("xdg"), below("xdg/huggingface/hub")),
        ("HF_HOME", below("home"), below("home/hub")),
        ("HF_HUB_CACHE", below("cache"), below("cache")),
    ] {
        user = user.with(name, &value);
        let stdout = user.fetch().succeeded().stdout;
        assert!(stdout.starts_with(&format!("{folder}/{REPO_FOLDER}/snapshots/")), "{name}: {stdout}");
        assert!(Path::new(stdout.trim()).is_file());
        assert_eq!(user.run(&["path"]).succeeded().stdout, stdout);
    }
}

#[test]
fn nothing_is_asked_of_the_hub_before_the_licence_is_accepted() {
    let hub = FakeHub::start(Behaviour::default());
    let user = User::of(&hub);
    user.run(&["fetch"]).failed_saying(&["--accept-licence", "noncommercial"]);
    assert_eq!(hub.requests().len(), 0);
    assert!(user.cached().is_empty());
}

#[test]
fn a_renamed_repository_is_followed() {
    let hub = FakeHub::start(Behaviour { renamed: true, ..Behaviour::default() });
    User::of(&hub).fetch().succeeded();
    assert!(hub.requests().iter().any(|request| request.method == "HEAD" && request.path.starts_with("/new/")));
}

#[test]
fn refusals_of_the_hub_are_explained_and_leave_nothing() {
    for (status, parts) in [
        ("404 Not Found", &["404", RESOLVE, "HF_ENDPOINT"][..]),
        ("401 Unauthorized", &["401", "set HF_TOKEN"]),
        ("403 Forbidden", &["403", "conditions"]),
        ("500 Internal Server Error", &["500", "try again later"]),
        ("429 Too Many Requests", &["429", "try again later"]),
    ] {
        let hub = FakeHub::start(Behaviour { status: Some(status), ..Behaviour::default() });
        let user = User::of(&hub);
        user.fetch().failed_saying(parts);
        assert!(user.cached().is_empty());
    }
    let hub = FakeHub::start(Behaviour { status: Some("401 Unauthorized"), ..Behaviour::default() });
    User::of(&hub).with("HF_TOKEN", "hf_wrong").fetch().failed_saying(&["401", "the token in HF_TOKEN is wrong"]);
}

#[test]
fn damaged_bytes_are_not_kept() {
    // One bit of the last value: still a valid SuperPoint, so only the hash can tell.
    let mut body = WEIGHTS.to_vec();
    *body.last_mut().expect("not empty") ^= 1;
    let found = sha256(&body);
    let hub = FakeHub::start(Behaviour { body, ..Behaviour::default() });
    let user = User::of(&hub);
    user.fetch().failed_saying(&[&sha256(WEIGHTS), &found, "damaged"]);
    assert!(user.cached().is_empty());
}

#[test]
fn a_file_that_is_not_superpoint_is_not_kept() {
    let body = vec![0x80; 5000];
    let hub = FakeHub::start(Behaviour { sha256: sha256(&body), size: body.len(), body, ..Behaviour::default() });
    let user = User::of(&hub);
    user.fetch().failed_saying(&["safetensors"]);
    assert!(user.cached().is_empty());
}

#[test]
fn an_answer_that_is_not_the_hubs_is_refused() {
    let good = Behaviour::default;
    for (behaviour, part) in [
        (Behaviour { commit: "0000000000000000000000000000000000000000", ..good() }, "it is for revision 0000"),
        (Behaviour { sha256: "abc".into(), ..good() }, "is not a SHA-256"),
        (Behaviour { size: 1 << 40, ..good() }, "1099511627776"),
        (Behaviour { size: 0, ..good() }, "`0`"),
        (Behaviour { size: WEIGHTS.len() - 1, ..good() }, "longer than the"),
    ] {
        let hub = FakeHub::start(behaviour);
        let user = User::of(&hub);
        user.fetch().failed_saying(&[part]);
        assert!(user.cached().is_empty());
    }
}

#[test]
fn a_broken_transfer_is_taken_up_where_it_stopped() {
    let hub = FakeHub::start(Behaviour { stops: vec![1_000_000, 500_000], ..Behaviour::default() });
    let user = User::of(&hub);
    user.fetch().succeeded();
    assert_eq!(fs::read(user.snapshot()).expect("readable"), WEIGHTS);
    let ranges: Vec<Option<String>> = hub
        .requests()
        .iter()
        .filter(|request| request.path == "/store")
        .map(|request| request.headers.get("range").cloned())
        .collect();
    assert_eq!(ranges, [None, Some("bytes=1000000-".to_owned()), Some("bytes=1500000-".to_owned())]);
}

#[test]
fn a_server_without_ranges_is_asked_again_from_the_start() {
    let hub = FakeHub::start(Behaviour { stops: vec![1_000_000], ranges: false, ..Behaviour::default() });
    let user = User::of(&hub);
    user.fetch().succeeded();
    assert_eq!(fs::read(user.snapshot()).expect("readable"), WEIGHTS);
}

#[test]
fn a_transfer_that_breaks_every_time_is_given_up() {
    let hub = FakeHub::start(Behaviour { stops: vec![100; 50], ..Behaviour::default() });
    let user = User::of(&hub);
    user.fetch().failed_saying(&["broke 5 times", "at byte 500 of", "try again later"]);
    assert!(user.cached().is_empty());
}

#[test]
fn a_stalled_transfer_is_taken_up_and_then_given_up() {
    let once = FakeHub::start(Behaviour { stops: vec![1_000_000], stall: true, ..Behaviour::default() });
    let user = User::of(&once).with("HF_HUB_DOWNLOAD_TIMEOUT", "1");
    user.fetch().succeeded();
    assert_eq!(fs::read(user.snapshot()).expect("readable"), WEIGHTS);

    let always = FakeHub::start(Behaviour { stops: vec![0; 50], stall: true, ..Behaviour::default() });
    let user = User::of(&always).with("HF_HUB_DOWNLOAD_TIMEOUT", "1");
    user.fetch().failed_saying(&["broke 5 times", "no byte came for 1 s"]);
    assert!(user.cached().is_empty());
}

#[test]
fn a_mute_hub_and_no_network_are_reported() {
    let mute = FakeHub::start(Behaviour { mute: true, ..Behaviour::default() });
    let user = User::of(&mute).with("HF_HUB_DOWNLOAD_TIMEOUT", "1");
    user.fetch().failed_saying(&["cannot reach", "timeout", "--weights"]);

    // A port on which nothing listens any more.
    let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port").port();
    let user = User::new().with("HF_ENDPOINT", &format!("http://127.0.0.1:{port}"));
    user.fetch().failed_saying(&["cannot reach", "bundled weights"]);
    User::new().with("HF_HUB_OFFLINE", "1").fetch().failed_saying(&["HF_HUB_OFFLINE"]);
    User::new().with("HF_ENDPOINT", "ftp://x").fetch().failed_saying(&["HF_ENDPOINT", "ftp://x"]);
}

#[test]
fn a_broken_file_in_the_cache_is_named_and_fetch_repairs_it() {
    let hub = FakeHub::start(Behaviour::default());
    let user = User::of(&hub);
    let snapshot = user.snapshot();
    fs::create_dir_all(snapshot.parent().expect("in a folder")).expect("writable");
    let name = snapshot.display().to_string();

    fs::write(&snapshot, &WEIGHTS[..1000]).expect("writable");
    user.run(&["path"]).failed_saying(&[&name, "cut off"]);
    fs::remove_file(&snapshot).expect("there");
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("../../blobs/gone", &snapshot).expect("writable");
        let outcome = user.run(&["path"]);
        assert_eq!(outcome.stderr.matches("../../blobs/gone").count(), 1, "said once: {}", outcome.stderr);
        outcome.failed_saying(&[&name]);
    }

    user.fetch().succeeded();
    assert_eq!(fs::read(&snapshot).expect("readable"), WEIGHTS);
    assert_eq!(user.run(&["path"]).succeeded().stdout, format!("{name}\n"));
    // The bundled weights are still to be had, by name.
    assert_eq!(user.run(&["path", "--weights", "bundled"]).succeeded().stdout, "bundled\n");
}

#[test]
fn a_cache_that_cannot_be_written_is_named() {
    let hub = FakeHub::start(Behaviour::default());
    let user = User::of(&hub).with("HF_HUB_CACHE", "/proc/hub");
    user.fetch().failed_saying(&["cannot write /proc/hub/"]);
}

#[test]
fn inspect_lists_every_tensor_also_of_a_file_that_is_refused() {
    let user = User::new();
    let table = user.run(&["inspect", "bundled"]).succeeded().stdout;
    assert_eq!(table.lines().filter(|line| line.contains(" F16 ")).count(), 24, "{table}");
    assert!(table.contains(&sha256(WEIGHTS)) && table.contains("name      superpoint_open\n"), "{table}");
    assert!(table.contains("keypoint_decoder.conv_score_b.weight"), "{table}");

    // Another name of the same length for one tensor.
    let other = user.home.path().join("other.safetensors");
    let mut bytes = WEIGHTS.to_vec();
    let at = bytes.windows(12).position(|window| window == b"conv_score_b").expect("in the header");
    bytes[at..at + 12].copy_from_slice(b"conv_score_c");
    fs::write(&other, bytes).expect("writable");
    let outcome = user.run(&["inspect", &other.display().to_string()]);
    assert_eq!(outcome.code, Some(1));
    assert!(outcome.stdout.contains("conv_score_c"), "{}", outcome.stdout);
    assert!(
        outcome.stderr.contains("conv_score_b") && outcome.stderr.contains("other.safetensors"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn inspect_survives_a_reader_that_goes_away() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_superpoint"))
        .args(["weights", "inspect", "bundled"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the binary was built for this test");
    drop(child.stdout.take());
    let mut stderr = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("readable");
    assert!(child.wait().expect("it ends").success(), "{stderr}");
}
