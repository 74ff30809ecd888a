//! How long decoding a JPEG's first channel takes, beside the general decoder: `decode_time FILE [RUNS]`.

use std::time::Instant;

use superpoint_node::decode::{MAX_PIXELS, colors};
use superpoint_node::jpeg::first_channel;
use superpoint_node::message::encoding::Range16;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let file = std::fs::read(args.next().ok_or("which file?")?)?;
    let runs: usize = args.next().map_or(Ok(20), |runs| runs.parse())?;
    let (mut first, mut general) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        let start = Instant::now();
        std::hint::black_box(first_channel(&file, MAX_PIXELS)?);
        first.push(start.elapsed());
        if runs > 1 {
            let start = Instant::now();
            std::hint::black_box(colors(&file, Range16::default())?);
            general.push(start.elapsed());
        }
    }
    for (name, times) in [("first channel", &mut first), ("all of them", &mut general)] {
        times.sort();
        if let (Some(least), Some(median)) = (times.first(), times.get(times.len() / 2)) {
            eprintln!("{name}: median {median:.2?}, least {least:.2?}");
        }
    }
    Ok(())
}
