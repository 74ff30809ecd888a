//! What users see of a p150 that is not there, or fails. No card: the command line meets no library at all or a test
//! double of it (`tt-metal-sys/tests/double`), which opens and computes nothing; the server gets a backend that fails.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use superpoint_node::engine::Engine;
use superpoint_node::http::{HttpOptions, Listen, Server};
use tt_backend::{
    Backend, BackendChoice, Detections, Detector, Error, Model, Options, Params, Plane, ServingPath, Size,
};

/// Runs `superpoint` with `TTSP_LIBRARY` naming a file.
fn superpoint(library: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_superpoint")).env("TTSP_LIBRARY", library).args(arguments).output().unwrap()
}

/// The one line on standard error of a run that failed and printed no data.
fn sentence(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), said.lines().count(), output.stdout.len()), (Some(1), 1, 0), "{said}");
    said
}

/// Compiles the double.
fn double(folder: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tt_backend/tt-metal-sys");
    let library = folder.join("libttsp.so");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let status = Command::new(compiler)
        .args(["-shared", "-fPIC", "-std=gnu11", "-I"])
        .arg(source.join("shim"))
        .arg(source.join("tests/double/ttsp_double.c"))
        .arg("-o")
        .arg(&library)
        .status()
        .unwrap();
    assert!(status.success());
    library
}

#[test]
fn without_a_library_one_sentence_says_what_to_install() {
    let nowhere = Path::new("/nonexistent/libttsp.so");
    for arguments in [&["info"][..], &["detect", "photo.png"], &["serve", "--port", "0"]] {
        let said = sentence_after_listening(&superpoint(nowhere, &[arguments, &["--backend", "p150"]].concat()));
        for part in ["backend p150", "/nonexistent/libttsp.so", "install TT-NN", "tt-metal-sys/shim", "TTSP_LIBRARY"] {
            assert!(said.contains(part), "{arguments:?}: {said}");
        }
    }
    let photo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tt_backend/tests/golden/astronaut_640x480.png");
    let said = sentence(&superpoint(nowhere, &["bench", "p150", photo.to_str().unwrap()]));
    assert!(said.contains("install TT-NN"), "{said}");
    // An empty name would be the program itself.
    let output = superpoint(Path::new(""), &["info", "--backend", "p150", "--weights", "bundled"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("is not a libttsp"), "{said}");
}

/// Found out before a card is looked for, which takes its time.
#[test]
fn bench_p150_refuses_what_the_card_leaves_to_the_host() {
    let folder = tempfile::tempdir().unwrap();
    let (large, deep) = (folder.path().join("large.png"), folder.path().join("deep.png"));
    image::GrayImage::new(2049, 16).save(&large).unwrap();
    image::ImageBuffer::<image::Luma<u16>, _>::from_raw(16, 16, vec![0u16; 256]).unwrap().save(&deep).unwrap();
    let config = folder.path().join("radius.yaml");
    std::fs::write(&config, "/**:\n  ros__parameters: {nms_radius: 9}\n").unwrap();
    let photo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tt_backend/tests/golden/astronaut_640x480.png");
    for (arguments, expected) in [
        (vec![large.as_os_str()], "images of 16x2049 are resized on the host"),
        (vec![deep.as_os_str()], "images of 16 bits are resized on the host"),
        (vec![photo.as_os_str(), "--config".as_ref(), config.as_os_str()], "suppression with radius 9"),
        (vec![photo.as_os_str(), "--device-id".as_ref(), "256".as_ref()], "256"),
    ] {
        let output =
            Command::new(env!("CARGO_BIN_EXE_superpoint")).args(["bench", "p150"]).args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(expected), "{said}");
    }
}

/// [`sentence`], but for what `serve` says before the card is looked for.
fn sentence_after_listening(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let rest: Vec<&str> = said.lines().filter(|line| !line.contains("listening on")).collect();
    assert_eq!((output.status.code(), rest.len(), output.stdout.len()), (Some(1), 1, 0), "{said}");
    rest.concat()
}

#[test]
fn auto_takes_the_cpu_and_says_why() {
    let output = superpoint(Path::new("/nonexistent/libttsp.so"), &["info", "--weights", "bundled"]);
    let info: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(info["backend"], "cpu");
    assert_eq!(info["serving_path"], serde_json::json!({"traced": false, "device_nms": false}));
    let reason = info["reason"].as_str().unwrap();
    assert!(reason.contains("/nonexistent/libttsp.so") && reason.contains("install TT-NN"), "{reason}");
}

#[test]
fn a_missing_and_a_faulty_card_are_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let library = double(folder.path());
    let bundled = ["info", "--backend", "p150", "--weights", "bundled"];
    // The double has one card.
    let said = sentence(&superpoint(&library, &[&bundled[..], &["--device-id", "3"]].concat()));
    assert!(said.contains("no card is found") && said.contains("tt-smi -ls"), "{said}");
    // A TT-NN that does not know where it is.
    let said = sentence(&superpoint(&library, &[&bundled[..], &["--device-id", "7"]].concat()));
    assert!(said.contains("set TT_METAL_RUNTIME_ROOT"), "{said}");
    // That one computes nothing, which its self test notices.
    let said = sentence(&superpoint(&library, &bundled));
    assert!(said.contains("self test") && said.contains("install another version"), "{said}");
    let output = superpoint(&library, &["info", "--weights", "bundled"]);
    let info: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(info["backend"] == "cpu" && info["reason"].as_str().unwrap().contains("self test"), "{info}");
}

/// A card that answers once.
#[derive(Debug)]
struct Card {
    answered: bool,
}

impl Backend for Card {
    fn description(&self) -> String {
        "a card that is not there".into()
    }

    fn serving_path(&self) -> ServingPath {
        ServingPath { traced: true, device_nms: true }
    }

    fn prepared(&self) -> Vec<Size> {
        vec![Size::NETWORK, Size::new(900, 1600)]
    }

    fn detect(&mut self, plane: &Plane<'_>, _: &Params, out: &mut Detections) -> Result<(), Error> {
        if std::mem::replace(&mut self.answered, true) {
            return Err(Error::Device { reason: "no answer for 10 s: it hangs, reset it with `tt-smi -r`".into() });
        }
        out.original = plane.size();
        out.network = Size::NETWORK;
        out.serving_path = self.serving_path();
        Ok(())
    }
}

#[test]
fn the_server_is_unhealthy_once_the_card_is_lost() {
    let engine = Engine::start_with(|| {
        let options = Options { backend: BackendChoice::Cpu, weights: Some("bundled".into()), ..Options::default() };
        let cpu = Detector::open(&options)?.model().clone();
        let card = Card { answered: false };
        let model = Model {
            backend: BackendChoice::P150,
            description: card.description(),
            serving_path: card.serving_path(),
            prepared: card.prepared(),
            ..cpu
        };
        Ok(Detector::with_backend(Box::new(card), model))
    })
    .unwrap();
    let listen = Listen { port: 0, ..Listen::default() };
    let server = Server::start(HttpOptions { listen, ..HttpOptions::default() }).unwrap();
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let url = |path: &str| format!("http://{}{path}", server.address());
    let answer = |reply: Result<ureq::http::Response<ureq::Body>, ureq::Error>| {
        let mut reply = reply.unwrap();
        let json: serde_json::Value = serde_json::from_str(&reply.body_mut().read_to_string().unwrap()).unwrap();
        (reply.status().as_u16(), json)
    };
    let get = |path: &str| answer(agent.get(url(path)).call());
    let predict = || answer(agent.post(url("/predict_plane?height=2&width=2")).send(&[0u8; 4][..]));

    assert_eq!(get("/health").0, 503, "starting");
    server.attach(&engine);
    let (status, health) = get("/health");
    assert_eq!((status, &health["backend"]), (200, &"p150".into()));
    let (_, info) = get("/info");
    assert_eq!(info["serving_path"], serde_json::json!({"traced": true, "device_nms": true}));
    assert_eq!(info["prepared_image_sizes"][1], serde_json::json!({"height": 900, "width": 1600}));

    let (status, first) = predict();
    assert_eq!((status, &first["serving_path"]["device_nms"]), (200, &true.into()));
    for _ in 0..2 {
        let (status, problem) = predict();
        assert!(status == 503 && problem["detail"].as_str().unwrap().contains("tt-smi -r"), "{status} {problem}");
        let (status, health) = get("/health");
        assert_eq!((status, &health["status"]), (503, &"failed".into()));
        assert!(health["detail"].as_str().unwrap().contains("it hangs"), "{health}");
        assert_eq!(get("/info").1["device"]["state"], "failed");
    }
    server.stop();
}
