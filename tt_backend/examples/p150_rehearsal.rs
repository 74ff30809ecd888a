//! The device graph on a mock p150, which needs TT-NN and `libttsp.so` but no card: `p150_rehearsal [plan | run]`.
#![allow(clippy::print_stdout)]

use std::error::Error;

use tt_backend::p150::rehearsal;
use tt_backend::{Size, weights::Weights};
use tt_metal_sys::Library;

fn main() -> Result<(), Box<dyn Error>> {
    let library = Library::load()?;
    let weights = Weights::bundled()?;
    let sizes = [Size::NETWORK, Size::new(720, 1280), Size::new(900, 1600), Size::new(1080, 1920), Size::new(777, 333)];
    let radii: Vec<usize> = (1..=8).collect();
    println!("TT-NN {}", library.ttnn_version());
    if std::env::args().nth(1).as_deref() == Some("run") {
        for (pass, programs) in rehearsal::run(&library, &weights, &sizes, &radii, 3)?.iter().enumerate() {
            println!("pass {}: {programs} programs", pass + 1);
        }
        return Ok(());
    }
    let plan = rehearsal::plan(&library, &weights, &sizes, &radii)?;
    println!("grid {:?}, {} bytes of L1 a core", plan.device.grid, plan.device.l1_bytes_per_core);
    for (stage, usage) in &plan.stages {
        println!("{stage}: {usage:?}");
    }
    Ok(())
}
