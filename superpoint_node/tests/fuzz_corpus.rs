//! The fuzzers' corpus, replayed: what they found once stays found.

#[path = "../fuzz/checks.rs"]
mod checks;

fn replay(target: &str, check: fn(&[u8])) {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let files = std::fs::read_dir(&folder).expect("the corpus is committed");
    let mut count = 0;
    for file in files {
        check(&std::fs::read(file.expect("a file").path()).expect("readable"));
        count += 1;
    }
    assert!(count >= 10, "{folder:?} has only {count} files");
}

#[test]
fn predict() {
    replay("predict", checks::predict);
}

#[test]
fn picture() {
    replay("picture", checks::picture);
}

#[test]
fn npz() {
    replay("npz", checks::npz);
}
