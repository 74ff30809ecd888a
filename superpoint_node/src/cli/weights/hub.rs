//! Downloading one file of a pinned revision from the Hugging Face hub.
//!
//! Own code on a small blocking HTTP client: the `hf-hub` crate brings an async runtime and a transfer library,
//! writes into the cache before the file can be checked, and does not compare the SHA-256.
//!
//! The file (5 MB) is held in memory until it is checked, so that an interruption at any time leaves nothing
//! behind. A connection that breaks or stalls is taken up again where it stopped.

use std::ffi::OsString;
use std::io::{self, Read};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use tt_backend::weights::{HUB_FILE, HUB_REPO, HUB_REVISION, MAX_FILE_BYTES};
use ureq::Agent;
use ureq::config::RedirectAuthHeaders;
use ureq::http::{Response, StatusCode, header};

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";
/// As `huggingface_hub`.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// Requests for the file's bytes before giving up.
const MAX_ATTEMPTS: u32 = 5;
/// Redirects from the hub to where the file lies.
const MAX_REDIRECTS: u32 = 5;

/// Why a download failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum HubError {
    /// `HF_HUB_OFFLINE` is set.
    #[error("HF_HUB_OFFLINE is set, so nothing is downloaded; unset it, or give the file with --weights")]
    Offline,
    /// A variable in the environment cannot be used.
    #[error("{name} is `{value}`, but must be {expected}")]
    Variable {
        /// The variable.
        name: &'static str,
        /// Its value, except for secrets.
        value: String,
        /// What is accepted.
        expected: &'static str,
    },
    /// No answer from the server.
    #[error(
        "cannot reach {url}: {reason}; on a machine without network, copy {HUB_FILE} there and give it with \
         --weights, or use the bundled weights"
    )]
    Unreachable {
        /// What was asked for.
        url: String,
        /// What the system said.
        reason: String,
    },
    /// 401 or 403.
    #[error("the hub refused {url} ({status}): {advice}")]
    Refused {
        /// What was asked for.
        url: String,
        /// The status line.
        status: StatusCode,
        /// What to do.
        advice: &'static str,
    },
    /// 404.
    #[error("the hub has no {url} (404): check HF_ENDPOINT, the repository may have been moved or removed")]
    NotFound {
        /// What was asked for.
        url: String,
    },
    /// Any other answer but success.
    #[error("the hub answered {url} with {status}; try again later")]
    Status {
        /// What was asked for.
        url: String,
        /// The status line.
        status: StatusCode,
    },
    /// The answer does not describe the file.
    #[error("the answer for {url} is not the hub's: {reason}")]
    Answer {
        /// What was asked for.
        url: String,
        /// What is missing or wrong.
        reason: String,
    },
    /// The transfer broke again and again.
    #[error("the download of {url} broke {attempts} times, at byte {received} of {bytes}: {reason}; try again later")]
    Interrupted {
        /// What was asked for.
        url: String,
        /// Requests made.
        attempts: u32,
        /// Bytes received.
        received: usize,
        /// Bytes declared.
        bytes: u64,
        /// What happened the last time.
        reason: String,
    },
    /// The bytes are not those that the hub announced.
    #[error("{url} was damaged on the way: its SHA-256 is {found}, but the hub announced {expected}; nothing was kept")]
    WrongHash {
        /// What was asked for.
        url: String,
        /// From the hub.
        expected: String,
        /// Of the bytes received.
        found: String,
    },
}

/// The hub as the environment describes it.
pub(super) struct Hub {
    endpoint: String,
    token: Option<String>,
    timeout: Duration,
    agent: Agent,
}

/// What the hub says of the file.
#[derive(Debug)]
pub(super) struct Remote {
    /// Where it is asked for.
    pub(super) url: String,
    /// 64 lower-case hexadecimal digits.
    pub(super) sha256: String,
    /// Its length.
    pub(super) bytes: u64,
}

impl Hub {
    /// Reads `HF_ENDPOINT`, `HF_TOKEN`, `HF_HUB_OFFLINE` and `HF_HUB_DOWNLOAD_TIMEOUT`.
    pub(super) fn from_env(env: impl Fn(&str) -> Option<OsString>) -> Result<Self, HubError> {
        let text = |name: &str| {
            let value = env(name)?.to_string_lossy().trim().to_owned();
            (!value.is_empty()).then_some(value)
        };
        let offline = text("HF_HUB_OFFLINE").or_else(|| text("TRANSFORMERS_OFFLINE"));
        if offline.is_some_and(|value| ["1", "on", "yes", "true"].contains(&value.to_ascii_lowercase().as_str())) {
            return Err(HubError::Offline);
        }
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned());
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        if !endpoint.starts_with("https://") && !endpoint.starts_with("http://") {
            let expected = "an address that starts with https:// or http://";
            return Err(HubError::Variable { name: "HF_ENDPOINT", value: endpoint, expected });
        }
        let token = text("HF_TOKEN");
        if token.as_ref().is_some_and(|token| !token.chars().all(|c| c.is_ascii_graphic())) {
            let expected = "a token of the hub, without spaces";
            return Err(HubError::Variable { name: "HF_TOKEN", value: "(not shown)".to_owned(), expected });
        }
        let timeout = match text("HF_HUB_DOWNLOAD_TIMEOUT") {
            None => DEFAULT_TIMEOUT,
            Some(value) => match value.parse::<u64>() {
                Ok(seconds @ 1..=3600) => Duration::from_secs(seconds),
                _ => {
                    let expected = "a whole number of seconds, 1 to 3600";
                    return Err(HubError::Variable { name: "HF_HUB_DOWNLOAD_TIMEOUT", value, expected });
                }
            },
        };
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .timeout_resolve(Some(timeout))
            .timeout_connect(Some(timeout))
            .timeout_send_request(Some(timeout))
            .timeout_recv_response(Some(timeout))
            .user_agent(concat!("superpoint/", env!("CARGO_PKG_VERSION")))
            // The length and the hash are those of the file as it is.
            .accept_encoding("identity")
            .build()
            .into();
        Ok(Self { endpoint, token, timeout, agent })
    }

    /// Without a slash at its end.
    pub(super) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    fn url(&self) -> String {
        format!("{}/{HUB_REPO}/resolve/{HUB_REVISION}/{HUB_FILE}", self.endpoint)
    }

    /// Asks for the file's hash and length.
    pub(super) fn describe(&self) -> Result<Remote, HubError> {
        let url = self.url();
        let mut at = url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let mut request = self.agent.head(&at);
            if let Some(token) = self.token_for(&at) {
                request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
            }
            // Redirects by hand: the hash is in the hub's answer, not in that of the store it points to.
            let response = request
                .config()
                .max_redirects(0)
                .max_redirects_will_error(false)
                .build()
                .call()
                .map_err(|error| unreachable(&at, &error))?;
            let status = response.status();
            let next = header_text(&response, "location").filter(|_| status.is_redirection());
            match next {
                Some(next) if header_text(&response, "x-linked-etag").is_none() => {
                    at = if next.starts_with('/') { format!("{}{next}", origin(&at)) } else { next };
                }
                Some(_) => return describe_from(url, &response),
                None if status.is_success() => return describe_from(url, &response),
                None => return Err(self.status_error(at, status)),
            }
        }
        Err(HubError::Answer { url, reason: format!("more than {MAX_REDIRECTS} redirects") })
    }

    /// All bytes of the file; `progress` hears how many there are.
    pub(super) fn download(&self, remote: &Remote, mut progress: impl FnMut(u64)) -> Result<Vec<u8>, HubError> {
        let mut bytes = Vec::new();
        let mut reason = String::new();
        for attempt in 0..MAX_ATTEMPTS {
            if attempt > 0 {
                std::thread::sleep(Duration::from_millis(200) * attempt);
            }
            match self.receive(remote, &mut bytes, &mut progress)? {
                None => return Ok(bytes),
                Some(broken) => reason = broken,
            }
        }
        Err(HubError::Interrupted {
            url: remote.url.clone(),
            attempts: MAX_ATTEMPTS,
            received: bytes.len(),
            bytes: remote.bytes,
            reason,
        })
    }

    /// One request for the bytes that are still missing. `Some` says how the transfer broke, if it is worth another
    /// request.
    fn receive(
        &self,
        remote: &Remote,
        bytes: &mut Vec<u8>,
        progress: &mut impl FnMut(u64),
    ) -> Result<Option<String>, HubError> {
        let mut request = self.agent.get(&remote.url);
        if let Some(token) = &self.token {
            // The client does not send it on to the store on another host.
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        if !bytes.is_empty() {
            request = request.header(header::RANGE, format!("bytes={}-", bytes.len()));
        }
        let response = match request.call() {
            Ok(response) => response,
            // The hub has answered before, so this may pass.
            Err(error) => return Ok(Some(error.to_string())),
        };
        match response.status() {
            StatusCode::OK => bytes.clear(),
            StatusCode::PARTIAL_CONTENT if continues_at(&response, bytes.len()) => {}
            StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => {
                bytes.clear();
                return Ok(Some("the server could not take the transfer up again".to_owned()));
            }
            status if status.is_server_error() => return Ok(Some(format!("the server answered {status}"))),
            status => return Err(self.status_error(remote.url.clone(), status)),
        }

        let chunks = read_in_background(response.into_body().into_reader());
        loop {
            match chunks.recv_timeout(self.timeout) {
                Ok(Ok(chunk)) if chunk.is_empty() => break,
                Ok(Ok(chunk)) => bytes.extend_from_slice(&chunk),
                Ok(Err(error)) => return Ok(Some(error.to_string())),
                Err(RecvTimeoutError::Timeout) => {
                    return Ok(Some(format!("no byte came for {} s", self.timeout.as_secs())));
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(Some("the connection was closed".to_owned())),
            }
            if bytes.len() as u64 > remote.bytes {
                let reason = format!("the file is longer than the {} bytes that were announced", remote.bytes);
                return Err(HubError::Answer { url: remote.url.clone(), reason });
            }
            progress(bytes.len() as u64);
        }
        Ok((bytes.len() as u64 != remote.bytes).then(|| "the connection was closed too early".to_owned()))
    }

    /// The token, for addresses of the hub itself only.
    fn token_for(&self, url: &str) -> Option<&str> {
        self.token.as_deref().filter(|_| origin(url) == origin(&self.endpoint))
    }

    fn status_error(&self, url: String, status: StatusCode) -> HubError {
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                let advice = if self.token.is_some() {
                    "the token in HF_TOKEN is wrong, or its owner has not accepted the repository's conditions there"
                } else {
                    "the repository asks for a login; accept its conditions there, and set HF_TOKEN to a token of yours"
                };
                HubError::Refused { url, status, advice }
            }
            StatusCode::NOT_FOUND => HubError::NotFound { url },
            status => HubError::Status { url, status },
        }
    }
}

/// Reads a body in a thread of its own, in chunks; an empty chunk is its end. The client has no limit for the time
/// between two bytes, only for the whole, which a slow line may rightly need; so the receiver waits for each chunk.
/// After a stall the thread stays behind until its connection or the process ends.
fn read_in_background(mut body: impl Read + Send + 'static) -> mpsc::Receiver<io::Result<Vec<u8>>> {
    let (sender, receiver) = mpsc::sync_channel(4);
    std::thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let chunk = match body.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                result => result.map(|count| buffer[..count].to_vec()),
            };
            let last = chunk.as_ref().map_or(true, Vec::is_empty);
            if sender.send(chunk).is_err() || last {
                return;
            }
        }
    });
    receiver
}

/// Reads the hash and the length from the hub's headers.
fn describe_from<B>(url: String, response: &Response<B>) -> Result<Remote, HubError> {
    let wrong = |reason: String| HubError::Answer { url: url.clone(), reason };
    if let Some(commit) = header_text(response, "x-repo-commit")
        && commit != HUB_REVISION
    {
        return Err(wrong(format!("it is for revision {commit}")));
    }
    let etag = header_text(response, "x-linked-etag")
        .or_else(|| header_text(response, "etag"))
        .ok_or_else(|| wrong("it has no X-Linked-Etag and no ETag with the file's SHA-256".to_owned()))?;
    let sha256 = etag.trim_start_matches("W/").trim_matches('"').to_ascii_lowercase();
    if sha256.len() != 64 || !sha256.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(wrong(format!("its ETag {etag} is not a SHA-256")));
    }
    let length = header_text(response, "x-linked-size")
        .or_else(|| header_text(response, "content-length").filter(|_| response.status().is_success()))
        .ok_or_else(|| wrong("it does not say the file's length".to_owned()))?;
    match length.parse::<u64>() {
        Ok(bytes @ 1..=MAX_FILE_BYTES) => Ok(Remote { url, sha256, bytes }),
        _ => Err(wrong(format!("the file's length is `{length}`, but must be 1 to {MAX_FILE_BYTES} bytes"))),
    }
}

fn unreachable(url: &str, error: &ureq::Error) -> HubError {
    HubError::Unreachable { url: url.to_owned(), reason: error.to_string() }
}

fn header_text<B>(response: &Response<B>, name: &str) -> Option<String> {
    response.headers().get(name)?.to_str().ok().map(str::to_owned)
}

/// Whether a partial answer starts where the bytes so far end.
fn continues_at<B>(response: &Response<B>, received: usize) -> bool {
    header_text(response, "content-range").is_some_and(|range| range.starts_with(&format!("bytes {received}-")))
}

/// Scheme and host of an address.
fn origin(url: &str) -> &str {
    let host = url.find("://").map_or(0, |at| at + 3);
    url[host..].find('/').map_or(url, |end| &url[..host + end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub(variables: &'static [(&str, &str)]) -> Result<Hub, HubError> {
        Hub::from_env(|name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()))
    }

    #[test]
    fn the_environment_is_checked() {
        let plain = hub(&[]).expect("an empty environment is fine");
        assert_eq!(plain.endpoint(), "https://huggingface.co");
        assert_eq!(plain.timeout, Duration::from_secs(10));
        for (variables, text) in [
            (&[("HF_HUB_OFFLINE", "1")][..], "HF_HUB_OFFLINE is set"),
            (&[("HF_ENDPOINT", "hub.example")], "HF_ENDPOINT is `hub.example`"),
            (&[("HF_TOKEN", "a b")], "HF_TOKEN is `(not shown)`"),
            (&[("HF_HUB_DOWNLOAD_TIMEOUT", "0")], "HF_HUB_DOWNLOAD_TIMEOUT is `0`"),
        ] {
            let error = hub(variables).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn the_token_is_for_the_hub_only() {
        let hub = hub(&[("HF_ENDPOINT", "https://hub.example/mirror/"), ("HF_TOKEN", "hf_x")]).expect("valid");
        assert_eq!(hub.token_for("https://hub.example/a"), Some("hf_x"));
        for other in ["http://hub.example/a", "https://hub.example.evil/a", "https://hub.example:8080/a"] {
            assert_eq!(hub.token_for(other), None, "{other}");
        }
    }
}
