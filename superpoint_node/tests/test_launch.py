"""The launch files: run with `launch` where it is installed, else the very command line that they build is run."""

import importlib.util
import pathlib
import signal
import sys

import pytest
import yaml
from ament_index_python.packages import get_package_share_directory

from conftest import NODE, ROOT, Camera, Running, image

SHARE = pathlib.Path(get_package_share_directory('superpoint_p150'))
HAS_LAUNCH = importlib.util.find_spec('launch_ros') is not None

# What `ros2 launch FILE NAME:=VALUE...` does.
LAUNCHER = '''
import sys
from launch import LaunchDescription, LaunchService
from launch.actions import IncludeLaunchDescription
from launch.launch_description_sources import AnyLaunchDescriptionSource

path, *arguments = sys.argv[1:]
pairs = [argument.split(':=', 1) for argument in arguments]
service = LaunchService(argv=arguments)
service.include_launch_description(LaunchDescription([
    IncludeLaunchDescription(AnyLaunchDescriptionSource(path), launch_arguments=pairs)]))
sys.exit(service.run())
'''


def command(directory, file, arguments, built):
    """How to start a launch file: by launch, or by `built`, the arguments of the node that it comes to."""
    if HAS_LAUNCH:
        return [sys.executable, '-c', LAUNCHER, str(SHARE / 'launch' / file),
                *(f'{name}:={value}' for name, value in arguments.items())]
    overrides = directory / 'overrides.yaml'
    overrides.write_text(yaml.safe_dump({'/**': {'ros__parameters': built['parameters']}}))
    return [NODE, '--ros-args', '--log-level', 'info', '--ros-args', '-r', '__node:=superpoint',
            '-r', f'__ns:={built["namespace"]}', '--params-file', str(SHARE / 'config' / 'superpoint.yaml'),
            '--params-file', str(overrides),
            *(part for rule in built['remappings'] for part in ('-r', rule))]


def end(node):
    node.process.send_signal(signal.SIGINT)
    node.process.wait(timeout=15)
    assert 'ending on a signal' in node.log(), node.log()


def test_superpoint(ros, tmp_path, picture):
    values = {'max_keypoints': 7, 'keypoint_threshold': 0.01, 'return_descriptors': False, 'nms_radius': 6}
    namespace = '/launched'
    node = Running(
        ros, tmp_path / 'log', namespace=namespace, image_topic='cam/image_raw', keypoints_topic='points',
        command=command(
            tmp_path, 'superpoint.launch.py',
            {'namespace': 'launched', 'image': 'cam/image_raw', 'keypoints': 'points',
             **{name: str(value).lower() for name, value in values.items()}},
            {'namespace': namespace, 'parameters': values,
             'remappings': ['image:=cam/image_raw', 'keypoints:=points']}))
    try:
        assert node.get(*values) == list(values.values())
        answer = node.detect(image(picture, 'rgb8'))
        assert len(answer.scores) == 7 and answer.descriptor_dim == 0
        end(node)
    finally:
        node.close()


def test_multi_camera(ros, tmp_path, picture):
    namespace = '/launched_rig'
    node = Running(
        ros, tmp_path / 'log', namespace=namespace,
        cameras=lambda node: [Camera(node, f'{name}/image_raw', f'{name}/keypoints') for name in ['front', 'rear']],
        command=command(
            tmp_path, 'multi_camera.launch.py',
            {'namespace': 'launched_rig', 'cameras': 'front, rear', 'image': 'image_raw'},
            {'namespace': namespace, 'parameters': {'cameras': ['front', 'rear']},
             'remappings': [f'{name}/{topic}' for name in ['front', 'rear']
                            for topic in [f'image:={name}/image_raw', f'keypoints:={name}/keypoints']]}))
    try:
        for camera in node.cameras:
            assert len(camera.detect(image(picture, 'rgb8')).scores) > 100
        end(node)
    finally:
        node.close()


@pytest.mark.parametrize('path', sorted((ROOT / 'launch').glob('*.py')), ids=lambda path: path.name)
def test_files_are_installed_and_compile(path):
    text = (SHARE / 'launch' / path.name).read_text()
    assert text == path.read_text(), 'built from other sources; run scripts/build.bash'
    compile(text, path.name, 'exec')


@pytest.mark.skipif(not HAS_LAUNCH, reason='launch is not among the wheels; tested where ROS is installed')
def test_replay_plays_the_bag_and_takes_the_node_along(tmp_path):
    from launch import LaunchContext
    from launch.actions import ExecuteProcess
    from launch.launch_description_sources import PythonLaunchDescriptionSource
    from launch.utilities import perform_substitutions

    context = LaunchContext()
    context.launch_configurations.update(bag=str(tmp_path), rate='0.5', delay='1.0', loop='true')
    source = PythonLaunchDescriptionSource(str(SHARE / 'launch' / 'replay.launch.py'))
    opaque = source.get_launch_description(context).entities[-1]
    play, = [entity for entity in opaque.execute(context) if isinstance(entity, ExecuteProcess)]
    line = [perform_substitutions(context, part) for part in play.cmd]
    assert line == ['ros2', 'bag', 'play', str(tmp_path), '--clock', '--rate', '0.5', '--delay', '1.0', '--loop']


def test_rviz_shows_overlay_and_image():
    displays = yaml.safe_load((SHARE / 'config' / 'superpoint.rviz').read_text())['Visualization Manager']['Displays']
    topics = {display['Topic']['Value']: display['Topic']['Reliability Policy'] for display in displays}
    # The overlay is published reliably, cameras mostly not: each subscription matches its publisher.
    assert topics == {'overlay': 'Reliable', 'image': 'Best Effort'}
