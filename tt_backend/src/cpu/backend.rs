//! All of a detection on the CPU.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::Network;
use crate::keypoints::Extractor;
use crate::maps::{Maps, all_finite};
use crate::resize::Resizer;
use crate::team::Team;
use crate::weights::Weights;
use crate::{Backend, Detections, Error, Params, Plane, ServingPath, Size, Timings};

/// Resizing, the network and the choice of keypoints, one after the other.
#[derive(Debug)]
pub struct CpuBackend {
    resizer: Resizer,
    frame: Vec<f32>,
    network: Network,
    maps: Maps,
    extractor: Extractor,
    /// Name of the weights.
    weights: String,
}

impl CpuBackend {
    /// Prepares everything for network frames of `size`; `threads` of 0 are one for each core.
    ///
    /// # Errors
    ///
    /// [`Error::NetworkSize`], or [`Error::System`] when threads cannot be started.
    pub fn new(weights: &Weights, size: Size, threads: usize) -> Result<Self, Error> {
        Ok(Self {
            network: Network::new(weights, size, threads)?,
            resizer: Resizer::new(size),
            frame: Vec::new(),
            maps: Maps::new(size),
            extractor: Extractor::default(),
            weights: weights.provenance.name.clone(),
        })
    }

    /// Threads that the network runs on.
    pub fn threads(&self) -> usize {
        self.network.threads()
    }
}

/// [`all_finite`] on all threads.
fn finite(values: &[f32], team: &mut Team) -> bool {
    let found = AtomicBool::new(false);
    let part = values.len().div_ceil(team.size()).max(1);
    team.run(values.len().div_ceil(part), &|_, number| {
        let values = values.chunks(part).nth(number).unwrap_or_default();
        found.fetch_or(!all_finite(values), Ordering::Relaxed);
    });
    !found.into_inner()
}

impl Backend for CpuBackend {
    fn description(&self) -> String {
        match self.threads() {
            1 => "cpu, 1 thread".to_owned(),
            threads => format!("cpu, {threads} threads"),
        }
    }

    fn serving_path(&self) -> ServingPath {
        ServingPath::default()
    }

    fn prepared(&self) -> Vec<Size> {
        // Filters for another size are made in a fraction of a millisecond.
        vec![self.maps.size]
    }

    fn detect(&mut self, plane: &Plane<'_>, params: &Params, out: &mut Detections) -> Result<(), Error> {
        let start = Instant::now();
        self.resizer.resize(plane, self.network.team(), &mut self.frame);
        let resized = Instant::now();
        self.network.forward(&self.frame, params.return_descriptors, &mut self.maps);
        let inferred = Instant::now();
        self.extractor.extract(&self.maps, params, self.network.team(), out);
        let team = self.network.team();
        if !finite(&self.maps.scores, team) || !finite(&out.descriptors, team) {
            return Err(Error::NotFinite { weights: self.weights.clone() });
        }
        out.network = self.maps.size;
        out.original = plane.size();
        out.serving_path = ServingPath::default();
        out.timings = Timings { resize: resized - start, network: inferred - resized, keypoints: inferred.elapsed() };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_finite_is_found_in_every_threads_part() -> Result<(), Error> {
        for threads in 1..5 {
            let mut team = Team::new(threads)?;
            for count in 0..9 {
                let mut values = vec![0.5; count];
                assert!(finite(&values, &mut team));
                for at in 0..count {
                    values[at] = f32::NAN;
                    assert!(!finite(&values, &mut team), "{at} of {count} values, {threads} threads");
                    values[at] = 0.5;
                }
            }
        }
        Ok(())
    }

    #[test]
    fn an_overflow_is_an_error_and_not_a_result() -> Result<(), Error> {
        let mut weights = Weights::bundled()?;
        let size = Size::new(16, 16);
        let pixels = [200; 256];
        let plane = Plane::contiguous(&pixels, size)?;
        // Keypoints everywhere: descriptors that nobody asked for are not looked at.
        let params = Params { keypoint_threshold: 0.0, nms_radius: 0, ..Params::default() };
        let detect =
            |weights: &Weights| CpuBackend::new(weights, size, 1)?.detect(&plane, &params, &mut Detections::default());
        assert!(detect(&weights).is_ok());
        for layer in 0..weights.encoder.len() {
            let usual = weights.encoder[layer].weight.clone();
            weights.encoder[layer].weight *= 1e38;
            assert!(matches!(detect(&weights), Err(Error::NotFinite { .. })), "encoder layer {layer}");
            weights.encoder[layer].weight = usual;
        }
        for conv in &mut weights.descriptor {
            conv.weight *= 1e30;
        }
        assert!(matches!(detect(&weights), Err(Error::NotFinite { .. })));
        Ok(())
    }
}
