import pytest

from elasticflow.errors import DataError
from elasticflow.scheduler.traces import find_profiles, read_profiles, read_shape, read_trace
from tests.scheduler.cases import DATA, trace

HEAD = "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration"
OTHER = "job_id,submit_time,iteration,model_name,ddl,batch_size,num_gpu,duration,best_effort"
PROFILES = read_profiles(DATA / "throughputs_A100")


def write(folder, *rows):
    path = folder / "jobs.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.mark.parametrize("name", ["195job", "cluster01", "cluster05", "cluster06", "cluster10"])
def test_traces_of_the_first_format(name):
    jobs = trace(name)
    assert all(one.deadline_s > one.submit_s and one.iterations > 0 for one in jobs)
    assert [one.submit_s for one in jobs] == sorted(one.submit_s for one in jobs)


def test_the_other_format_has_its_own_profiles():
    jobs = trace("elasticVpollux_e")
    assert len(jobs) == 195
    assert jobs[0].curve.sizes == (1, 2, 4, 8, 16, 32, 64)


def test_best_effort_and_optional_columns(tmp_path):
    path = write(
        tmp_path,
        OTHER + ",user,priority,min_gpus,max_gpus,cost_cap_gpu_s",
        "a,5,100,vgg16,,64,2,50,1,ada,3,2,8,7200",
        "b,4,100,vgg16,99,64,2,50,0,,,,,",
    )
    b, a = read_trace(path, PROFILES)
    assert (a.deadline_s, a.user, a.priority, a.curve.sizes, a.cost_cap_gpu_s) == (
        None,
        "ada",
        3,
        (2, 4, 8),
        7200,
    )
    assert (b.deadline_s, b.user, b.priority, b.cost_cap_gpu_s) == (99.0, "", 0, None)


def test_a_profile_leaves_out_what_cannot_run():
    assert PROFILES["resnet50_cifar10", 64].sizes == (1, 2, 4, 8)
    assert PROFILES["deepspeech2", 32].sizes == (1, 2, 4, 8, 16, 32)


def test_shapes():
    assert read_shape(DATA / "cluster_specs" / "n64g8.csv").num_gpus == 512


@pytest.mark.parametrize(
    "row, words",
    [
        ("a,1,100,vgg17,9,64,1,1", "row 2: model 'vgg17' with batch 64; there is no profile"),
        ("a,1,100,vgg16,9,65,1,1", "there is batches 64, 128, 256 of it"),
        ("a,1,many,vgg16,9,64,1,1", "row 2: num_iteration is 'many'"),
        ("a,1,0,vgg16,9,64,1,1", "row 2: 0 iterations"),
    ],
)
def test_errors_name_the_row(tmp_path, row, words):
    with pytest.raises(DataError, match=words):
        read_trace(write(tmp_path, HEAD, row), PROFILES)


def test_a_column_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match="has no column submission_time or submit_time"):
        read_trace(write(tmp_path, HEAD.replace("submission", "x"), "a,1,9,vgg16,9,64,1,1"), PROFILES)


def test_a_job_that_is_there_twice(tmp_path):
    row = "a,1,9,vgg16,9,64,1,1"
    with pytest.raises(DataError, match="twice"):
        read_trace(write(tmp_path, HEAD, row, row), PROFILES)


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        read_trace(tmp_path / "none.csv", PROFILES)
    with pytest.raises(DataError, match="--profiles"):
        find_profiles(write(tmp_path, HEAD, "a,1,9,vgg16,9,64,1,1"))
    with pytest.raises(DataError, match="holds no profile"):
        read_profiles(tmp_path / "empty")
